"""Runs for the tests of the command line: a real project, a real sandbox, a real shell inside."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podbot.runs import records
from podbot.sandbox import OverlaySandbox, Policy, layers

PODBOT = [sys.executable, "-m", "podbot"]
PATIENCE = 60.0

# Makes the terminal the controlling one, so that Ctrl-C is a signal. In a program of its own: a
# fork of the tests may not import anything, as another of their threads may be importing just then.
LEADER = [
    sys.executable, "-I", "-S", "-c",
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
]  # fmt: skip


@contextlib.contextmanager
def own_project(files: Mapping[str, str]) -> Iterator[Path]:
    """A folder on a disk with these files in ``project``, and layers and state of its own."""
    # A zygote may still be removing what was discarded: the two may meet, which does no harm.
    with tempfile.TemporaryDirectory(
        prefix="podbot-test-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)  # engines of others must get through
        project = folder / "project"
        for path, text in files.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_text(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PODBOT_LAYERS", str(folder / "layers"))
            patch.setenv("PODBOT_STATE", str(folder / "state"))
            yield project
        with contextlib.suppress(OSError):
            layers.remove(folder / "layers")


_FILES = {
    "src/app.py": "print('old')\n",
    "numbers": "".join(f"{n}\n" for n in range(1, 101)),
    "old/one": "1\n",
    "old/two": "2\n",
}


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A small project that is the current folder."""
    with own_project(_FILES) as project, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.chdir(project)  # where `last` is what was run here
        yield project


def ran(project: Path, script: str, name: str | None = None, hidden: str | None = None) -> str:
    """The id of a run whose shell script has ended."""
    started = time.time()
    policy = Policy(hidden=(hidden,)) if hidden else Policy()
    with OverlaySandbox(project, policy=policy) as sandbox:
        result = sandbox.exec(["sh", "-c", script])
        assert result.ok, result
        assert sandbox.layer is not None
    record = records.Record(
        sandbox.layer.id,
        name,
        ("sh", "-c", script),
        (str(project),),
        "overlay",
        "none",
        started,
        os.getpid(),
        ended=time.time(),
        exit_status=0,
    )
    records.write(record)
    return record.id


def short(id: str) -> str:
    """A run without a name, as people are told of it."""
    return id.rpartition("-")[2][: records.SHORTEST]


def broken_off(id: str) -> None:
    """Make it look as if podbot had been killed during a run."""
    record = records.read(id)
    assert record is not None
    records.write(replace(record, ended=None, exit_status=None))


class Terminal:
    """A program on a terminal of its own, driven as a person would: wait for a text, answer."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._near, far = os.openpty()
        self.shown = b""
        try:
            self.process = subprocess.Popen(
                [*LEADER, *command],
                stdin=far,
                stdout=options.get("stdout", far),
                stderr=far,
                env={**os.environ, **(env or {})},
                cwd=options.get("cwd"),
                start_new_session=True,
            )
        finally:
            os.close(far)

    def __del__(self) -> None:
        if self.process.poll() is None:  # a test that failed: its terminal goes with it
            self.process.kill()
            self.process.wait()

    def until(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until a text is shown that was not shown before."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, self.shown.decode(errors="replace")
            assert self._read(0.1), self.shown.decode(errors="replace")
        self.shown = self.shown.partition(text.encode())[2]

    def send(self, text: str) -> None:
        """Type something."""
        os.write(self._near, text.encode())

    def end(self) -> int:
        """Wait for the end; gives the exit status."""
        while self._read(0.1):
            if self.process.poll() is not None and not self._pending():
                break
        os.close(self._near)
        return self.process.wait(PATIENCE)

    def _pending(self) -> bool:
        return bool(select.select([self._near], [], [], 0)[0])

    def _read(self, seconds: float) -> bool:
        """Whether there may be more."""
        if select.select([self._near], [], [], seconds)[0]:
            try:
                chunk = os.read(self._near, 65536)
            except OSError:
                return False  # how Linux tells that the other side is closed
            self.shown += chunk
            return bool(chunk)
        return True
