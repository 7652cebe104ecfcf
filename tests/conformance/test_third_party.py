"""A backend from another package: found by its entry point, and held to the same contract."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import pytest

import podbot.sandbox
from podbot.sandbox import Guarantee, Kind, Launched, Limits, Policy, Sandbox, SandboxError
from podbot.sandbox.memory import MemoryChannel
from podbot.testing import SandboxConformance


class ToyLauncher:
    """What another package would write."""

    name = "toy"

    def __init__(self, policy: Policy | None = None, limits: Limits | None = None):
        self.policy = policy or Policy()
        self.limits = limits or Limits()

    def launch(self) -> Launched:
        channel = MemoryChannel(self.limits, {})
        guarantees = (Guarantee("files", True, "it is a toy"),)
        return Launched("/workspace", guarantees, channel.close, channel)


@pytest.fixture(autouse=True)
def toy_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if a package with this entry point were installed."""
    entry = importlib.metadata.EntryPoint(
        "toy", f"{__name__}:ToyLauncher", podbot.sandbox.launcher.ENTRY_POINTS
    )
    monkeypatch.setattr(entry.__class__, "load", lambda _: ToyLauncher)

    def entry_points(**wanted: str) -> importlib.metadata.EntryPoints:
        return importlib.metadata.EntryPoints([entry]).select(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    yield


class TestToy(SandboxConformance):
    has_processes = False

    def open_sandbox(self, **options: object) -> Sandbox:
        return podbot.sandbox.open("toy", **options)


def test_it_is_opened_by_its_name() -> None:
    with podbot.sandbox.open("toy") as sandbox:
        assert sandbox.backend == "toy"


def test_a_name_nobody_registered_is_refused_and_the_others_are_named() -> None:
    with pytest.raises(SandboxError) as caught:
        podbot.sandbox.open("tow")
    assert caught.value.kind is Kind.UNKNOWN_BACKEND
    assert "toy" in str(caught.value)
    assert "overlay" in str(caught.value)
