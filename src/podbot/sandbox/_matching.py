"""Finding lines by a regular expression, for backends without a guest.

Patterns come from a model. A regular expression can run for ever and cannot be interrupted inside
a process, so it runs in a short-lived child that is killed when its time is up. It is told a little
before, and tells then what it has found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from podbot.errors import Kind, SandboxError

OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes of matching lines after which a search counts as cut."""
GRACE = 2.0
"""Seconds in which a search whose time is up tells what it found."""


@dataclass(frozen=True, slots=True)
class LineSearch:
    """A regular expression with its bounds."""

    pattern: str
    ignore_case: bool
    max_matches: int
    timeout: float


@dataclass(frozen=True, slots=True)
class LinesFound:
    """Matching lines as (index of the file, line number, line), and whether that is all."""

    lines: list[tuple[int, int, str]]
    cut: bool
    timed_out: bool


# What the child runs: one line of JSON, then the files' bytes one after another.
_PROGRAM = r"""
import json, re, resource, signal, sys
class TimeUp(Exception):
    pass
def ring(*_):
    raise TimeUp
signal.signal(signal.SIGALRM, ring)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
ask = json.loads(sys.stdin.buffer.readline())
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (int(ask["timeout"]) + 4,) * 2)
search = re.compile(ask["pattern"], re.IGNORECASE if ask["ignore_case"] else 0).search
found, room, cut, late = [], ask["output"], False, False
def look():
    global room, cut
    for index, size in enumerate(ask["sizes"]):
        data = sys.stdin.buffer.read(size)
        if cut or b"\0" in data[:8192]:
            continue
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, 1):
            text = line.decode("utf-8", "surrogateescape")
            if search(text):
                room -= len(line)
                if len(found) == ask["max_matches"] or room < 0:
                    cut = True
                    break
                found.append((index, number, text[:-1] if text.endswith("\r") else text))
try:
    try:
        signal.setitimer(signal.ITIMER_REAL, ask["timeout"])
        look()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
except TimeUp:
    late = True
json.dump([found, cut, late], sys.stdout)
"""


def search_lines(
    search: LineSearch,
    files: Sequence[bytes],
    started: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> LinesFound:
    """The lines that match. Raises kind ``timeout`` if the time was up before there was one.

    ``started`` is told of the child, so that another thread may kill it.
    """
    question = {
        "pattern": search.pattern,
        "ignore_case": search.ignore_case,
        "max_matches": search.max_matches,
        "timeout": search.timeout,
        "output": OUTPUT_LIMIT,
        "sizes": [len(data) for data in files],
    }
    feed = b"".join((json.dumps(question).encode("ascii"), b"\n", *files))
    with subprocess.Popen(
        # Isolated, and without `site`: nothing of the environment or a folder is loaded.
        [sys.executable or "python3", "-I", "-S", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
    ) as child:
        started(child)
        try:
            output, _ = child.communicate(feed, timeout=search.timeout + GRACE)
        except subprocess.TimeoutExpired:
            raise _timed_out(search) from None
        finally:
            child.kill()
    if child.returncode != 0:
        raise SandboxError(
            "the search was ended: the pattern used too much memory or time",
            kind=Kind.LIMIT,
            remedy="use a simpler pattern, or narrow it by path= or glob=",
        )
    found, cut, late = json.loads(output)
    if late and not found:
        raise _timed_out(search)
    return LinesFound([(index, number, line) for index, number, line in found], cut, late)


def _timed_out(search: LineSearch) -> SandboxError:
    return SandboxError(
        f"the search took longer than {search.timeout} s",
        kind=Kind.TIMEOUT,
        remedy="use a simpler pattern, narrow it by path= or glob=, or raise timeout=",
    )
