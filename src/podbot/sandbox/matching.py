"""Finding lines by a regular expression, for backends without a guest.

Patterns come from a model. A regular expression can run for ever and cannot be interrupted inside
a process, so it runs in a short-lived child that is killed when its time is up.
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


@dataclass(frozen=True, slots=True)
class LineSearch:
    """A regular expression with its bounds."""

    pattern: str
    ignore_case: bool
    max_matches: int
    timeout: float


# What the child runs: one line of JSON, then the files' bytes one after another.
_PROGRAM = r"""
import json, re, resource, sys
ask = json.loads(sys.stdin.buffer.readline())
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (int(ask["timeout"]) + 2,) * 2)
search = re.compile(ask["pattern"], re.IGNORECASE if ask["ignore_case"] else 0).search
found, room, cut = [], ask["output"], False
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
json.dump([found, cut], sys.stdout)
"""


def search_lines(
    search: LineSearch,
    files: Sequence[bytes],
    started: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> tuple[list[tuple[int, int, str]], bool]:
    """Matching lines as (index of the file, line number, line), and whether there were more.

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
            output, _ = child.communicate(feed, timeout=search.timeout)
        except subprocess.TimeoutExpired:
            raise SandboxError(
                f"the search took longer than {search.timeout} s",
                kind=Kind.TIMEOUT,
                remedy="use a simpler pattern, narrow it by path= or glob=, or raise timeout=",
            ) from None
        finally:
            child.kill()
    if child.returncode != 0:
        raise SandboxError(
            "the search was ended: the pattern used too much memory or time",
            kind=Kind.LIMIT,
            remedy="use a simpler pattern, or narrow it by path= or glob=",
        )
    found, cut = json.loads(output)
    return [(index, number, line) for index, number, line in found], cut
