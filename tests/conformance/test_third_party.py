"""A backend from another package: found by its entry point, and held to the same contract."""

from __future__ import annotations

import asyncio
import importlib.metadata

import pytest

import podbot.sandbox
from podbot.sandbox import (
    Guarantee,
    Kind,
    Launched,
    Launcher,
    Limits,
    Policy,
    Sandbox,
    SandboxError,
)
from podbot.sandbox.backends import ENTRY_POINTS, NAMES, find, real_name
from podbot.sandbox.memory import MemoryChannel
from podbot.testing import SandboxConformance


class ToyLauncher(Launcher):
    """What another package would write."""

    name = "toy"

    def __init__(self, policy: Policy | None = None, limits: Limits | None = None):
        self.policy = policy or Policy()
        self.limits = limits or Limits()

    def launch(self) -> Launched:
        channel = MemoryChannel(self.limits, {})
        guarantees = (Guarantee("files", True, "it is a toy"),)
        return Launched("/workspace", guarantees, channel.close, channel)


class LoudSandbox(Sandbox):
    """A sandbox that can do more than others."""

    def shout(self, path: str) -> str:
        return self.read(path).decode().upper()


class LoudLauncher(ToyLauncher):
    """A backend with a class of its own."""

    name = "loud"

    def sandbox(self) -> LoudSandbox:
        return LoudSandbox(self)


def looks_like_one() -> ToyLauncher:
    """Something a package may register by mistake: not the class, but what makes one."""
    return ToyLauncher()


@pytest.fixture(autouse=True)
def toy_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package with these entry points were installed."""
    given = {"toy": ToyLauncher, "loud": LoudLauncher, "mistaken": looks_like_one}
    entries = [
        importlib.metadata.EntryPoint(name, f"toys:{thing.__name__}", ENTRY_POINTS)
        for name, thing in given.items()
    ]
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: given[self.name])

    def entry_points(**wanted: str) -> importlib.metadata.EntryPoints:
        return importlib.metadata.EntryPoints(entries).select(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


class TestToy(SandboxConformance):
    has_processes = False

    def open_sandbox(self, **options: object) -> Sandbox:
        return podbot.sandbox.open("toy", **options)


def test_it_is_opened_by_its_name() -> None:
    with podbot.sandbox.open("toy") as sandbox:
        assert sandbox.backend == "toy"


def test_it_has_the_verbs_and_their_async_twins() -> None:
    async def twin() -> bytes:
        async with podbot.sandbox.open_async("toy") as sandbox:
            await sandbox.write("a", "one")
            return await sandbox.read("a")

    with podbot.sandbox.open("toy") as sandbox:
        sandbox.write("a", "one")
        assert sandbox.edit("a", "one", "two") == 1
        assert sandbox.read("a") == b"two"
    assert asyncio.run(twin()) == b"one"


def test_its_options_are_those_of_its_class() -> None:
    with pytest.raises(SandboxError) as caught:
        podbot.sandbox.open("toy", polcy=Policy())
    assert "did you mean policy?" in caught.value.message


def test_it_may_give_sandboxes_that_can_do_more() -> None:
    with podbot.sandbox.open("loud") as sandbox:
        assert isinstance(sandbox, LoudSandbox)
        sandbox.write("a", "one")
        assert sandbox.shout("a") == "ONE"


def test_what_is_no_launcher_is_refused_by_its_name() -> None:
    with pytest.raises(SandboxError) as caught:
        podbot.sandbox.open("mistaken")
    assert caught.value.kind is Kind.UNKNOWN_BACKEND
    assert "toys:looks_like_one is not a subclass of podbot.sandbox.Launcher" in str(caught.value)


def test_a_launcher_that_cannot_launch_cannot_be_made() -> None:
    class Half(Launcher):
        name = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half()


def test_a_name_nobody_registered_is_refused_and_the_others_are_named() -> None:
    with pytest.raises(SandboxError) as caught:
        podbot.sandbox.open("tow")
    assert caught.value.kind is Kind.UNKNOWN_BACKEND
    assert "toy" in str(caught.value)
    assert "overlay" in str(caught.value)


def test_podman_is_another_word_for_the_container_backend() -> None:
    assert find("podman") is find("container")
    assert find("container").name == real_name("podman") == "container"


def test_an_option_that_does_not_fit_is_told_with_the_backends_own_name() -> None:
    with pytest.raises(SandboxError, match="the backend container has no option 'imag'"):
        podbot.sandbox.open("podman", imag="mine")


@pytest.mark.parametrize("name", NAMES)
def test_every_backend_in_the_table_calls_itself_so(name: str) -> None:
    assert find(name).name == name
