"""The container backend keeps the contract, on every engine and runtime there is.

A test that only takes ``sandbox`` gets one that others used before it, emptied: making a container
takes longer than most tests do. Tests that open their own get a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from services import Service

import podbot.sandbox
from podbot.sandbox import AsyncSandbox, ContainerSandbox, Sandbox
from podbot.testing import AsyncSandboxConformance, SandboxConformance
from podbot.testing.files import FileTests
from podbot.testing.paths import PathTests
from podbot.testing.searching import SearchTests

pytestmark = [pytest.mark.e2e, pytest.mark.podman]


class Shared:
    """One sandbox that several tests use, one after the other."""

    _shared: ClassVar[dict[str, Sandbox]] = {}
    confines_files = False  # the image's files are there too, read-only

    @pytest.fixture(autouse=True)
    def engine(self, service: Service) -> None:
        self.service = service
        self.options = {"engine": service.url, "image": service.image}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def shared_ones(cls) -> Iterator[None]:
        cls._shared = {}
        yield
        for sandbox in cls._shared.values():
            sandbox.close()

    @pytest.fixture
    def sandbox(self, engine: None) -> Iterator[Sandbox]:
        sandbox = self._shared.get(self.service.kind)
        if sandbox is None or sandbox.closed:
            sandbox = self._shared[self.service.kind] = self.open_sandbox()
        yield sandbox
        if not sandbox.closed:
            emptied(sandbox)

    def open_sandbox(self, **options: object) -> Sandbox:
        raise NotImplementedError


def words_of(process: Path) -> bytes:
    """Its command line; nothing once it is dead."""
    try:
        return process.read_bytes()
    except OSError:
        return b""


def emptied(sandbox: Sandbox) -> None:
    """As it was when it was new, as far as the tests can tell."""
    for process in sandbox.processes():
        process.close()
    sandbox.python_restart()
    sandbox.exec(["sh", "-c", "kill -9 -1"])
    for folder in (sandbox.workdir, "/tmp"):
        for entry in sandbox.list(folder):
            sandbox.remove(f"{folder}/{entry.path.rpartition('/')[2]}", recursive=True)


@pytest.mark.engines("rootful", "rootless", "docker")
class TestContainer(Shared, SandboxConformance):
    def open_sandbox(self, **options: object) -> Sandbox:
        return podbot.sandbox.open("container", **self.options, **options)


@pytest.mark.engines("runsc")
class TestGvisor(Shared, SandboxConformance):
    forks_interpreters = False  # and so there is no template that could be stopped or killed
    test_a_template_that_was_killed_or_stopped_is_replaced = None
    # These look for processes of the sandbox on the host; gVisor's kernel shows it none.
    test_closing_kills_everything_and_frees_who_waits = None
    test_one_that_is_forgotten_is_closed = None
    test_an_error_inside_its_context_closes_it_too = None
    # Terminals of the gVisor that Debian has send no signals, and know no end of input.
    test_a_terminal_has_a_size_and_tells_when_it_changes = None
    test_a_terminal_passes_on_what_is_typed = None

    def open_sandbox(self, **options: object) -> Sandbox:
        # Its process 1 can be killed from inside; the suite wants to see it stay dead.
        return podbot.sandbox.open("container", **self.options, **options, restart=False)

    def test_its_kernel_is_gone_when_it_is_closed(self) -> None:
        sandbox = self.open_sandbox()
        assert isinstance(sandbox, ContainerSandbox) and sandbox.container is not None
        described = self.service.cli("inspect", "--format", "{{.State.Pid}}", sandbox.container.id)
        kernel = Path("/proc", described.strip(), "cmdline")
        assert b"runsc" in kernel.read_bytes()
        sandbox.spawn(["sleep", "600"])
        sandbox.close()
        assert words_of(kernel) == b""


@pytest.mark.engines("rootful")
class TestAsyncContainer(Shared, AsyncSandboxConformance):
    def open_sandbox(self, **options: object) -> Sandbox:
        return AsyncSandboxConformance.open_sandbox(self, **options)

    def open_async_sandbox(self, **options: object) -> AsyncSandbox:
        return podbot.sandbox.open_async("container", **self.options, **options)


# How files are handled is the guest's matter, which does not know who asks.
for part in (FileTests, PathTests, SearchTests):
    for name in [name for name in vars(part) if name.startswith("test_")]:
        setattr(TestAsyncContainer, name, None)
