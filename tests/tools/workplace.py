"""What tests of sections share: a section with a session and a prompt, and how it is made.

A class of tests that inherits from `SectionTests` says in `make_section` which section it is about.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from podbot.prompt import Prompt
from podbot.prompt.result import ToolResult
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import Sandbox
from podbot.tools import HostMount, VfsFile, VirtualFileSystem, WorkspaceSection

FILE_TOOLS = ["ls", "read_file", "write_file", "edit_file", "glob", "grep", "rm"]
COMMAND_TOOLS = ["shell_execute", "evaluate_python"]


DEADLINE = 60.0
"""Seconds after which a test gives up, on a machine that is very busy."""


def wait_for(condition: Callable[[], object]) -> None:
    """Until the condition holds; a failure if it never does."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)


def unique_sleep() -> str:
    """A command that sleeps for ten minutes, unlike any other that does."""
    return f"sleep 600.{secrets.randbelow(10**9)}"


def running(words: str) -> str:
    """A script that tells how often these words are in the command lines of processes.

    One that was killed has its words until it had the time to die: wait for the end of a command.
    """
    pattern = f"[{words[0]}]{words[1:]}"  # which does not match itself
    return (
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' "
        f"| LC_ALL=C grep -o '{pattern}' | wc -l"
    )


class Clock:
    """A clock that goes a second further each time someone looks."""

    def __init__(self) -> None:
        self._ticks = itertools.count()
        self.start = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.start + timedelta(seconds=next(self._ticks))


class Place:
    """A session, a section and a prompt around it, with short ways to call tools."""

    def __init__(self, session: Session, section: WorkspaceSection):
        self.session, self.section = session, section
        self.prompt = Prompt(ns="tests", key="section", sections=[section])

    def call(self, name: str, **arguments: object) -> ToolResult[Any]:
        return self.prompt.call(name, arguments, session=self.session)

    def ok(self, name: str, **arguments: object) -> Any:
        """The value of a call that must succeed."""
        result = self.call(name, **arguments)
        assert result.success, result.message
        return result.value

    def fails(self, name: str, **arguments: object) -> str:
        """What a call that must fail says to the model."""
        result = self.call(name, **arguments)
        assert not result.success, result.message
        return result.message

    def write(self, path: str, content: str | bytes) -> None:
        """A file as it is wanted, past the limits of the tools."""
        self.sandbox.write(path, content)

    def read(self, path: str) -> bytes:
        return self.sandbox.read(path)

    @property
    def sandbox(self) -> Sandbox:
        if self.section.sandbox is None:
            self.ok("ls")
        assert self.section.sandbox is not None
        return self.section.sandbox

    @property
    def files(self) -> dict[str, VfsFile]:
        """The files as the session knows them."""
        known = self.session.query(VirtualFileSystem).latest()
        assert known is not None
        return {str(file.path): file for file in known.files}

    @property
    def workspace(self) -> Any:
        """The workspace slice, which has one value at most."""
        kind = self.section._live._kind
        values = self.session.query(kind).all()
        assert len(values) <= 1
        return values[0] if values else None

    def shell(self, script: str, **arguments: object) -> Any:
        return self.ok("shell_execute", command=["sh", "-c", script], **arguments)


class SectionTests:
    """How a section is made and placed. ``commands``: whether it runs any."""

    commands = False

    def make_section(self, session: Session, **config: Any) -> WorkspaceSection:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def folders(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    @pytest.fixture
    def session(self) -> Session:
        return Session(bus=InProcessEventBus())

    @pytest.fixture
    def place(self, session: Session) -> Iterator[Place]:
        section = self.make_section(session)
        yield Place(session, section)
        section.close()

    @pytest.fixture
    def project(self) -> Path:
        """A host folder that can be mounted."""
        project = self.tmp_path / "host" / "project"
        (project / "src" / "deep").mkdir(parents=True)
        (project / "README.md").write_text("read me\n")
        (project / "src" / "main.py").write_text("print('main')\n")
        (project / "src" / "deep" / "low.py").write_text("low = 1\n")
        (project / "picture.bin").write_bytes(b"\x89PNG\0\xff")
        return project

    def mounted(self, session: Session, *mounts: HostMount) -> Place:
        section = self.make_section(
            session, mounts=mounts, allowed_host_roots=(self.tmp_path / "host",)
        )
        return Place(session, section)
