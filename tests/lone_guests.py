"""Local sandboxes whose guests are started by a command of the test's, not forked."""

from __future__ import annotations

import subprocess

import pytest

from podbot.sandbox import _local_guests, interpreter


class LoneGuest:
    """A guest that is a child of the tests; see `_local_guests.LocalGuest`."""

    def __init__(self, command: list[str], line: int):
        self._process = subprocess.Popen(
            [*command, str(line)],
            stdin=subprocess.DEVNULL,
            pass_fds=[line],
            cwd="/",
            env=interpreter.environment(),
            start_new_session=True,
        )

    def wait(self, seconds: float) -> bool | None:
        try:
            return self._process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def let_go(self) -> None:
        pass


def start_by(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """Have local guests started by this command, which is given the number of their line."""
    monkeypatch.setattr(_local_guests, "start", lambda line: LoneGuest(command, line))
