"""What the engine's tests share: a short folder for sockets, stand-ins that end with the test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import standin
from standin import StandIn

from podbot.engine import Engine, connect


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="pbe-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """What a test opens and wants closed at its end."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def speaking(folder: Path, ending: ExitStack) -> Callable[..., tuple[StandIn, Engine]]:
    """Makes a stand-in on a socket and an engine that is connected to it."""

    def make(**given: object) -> tuple[StandIn, Engine]:
        made = standin.on_socket(folder / "engine.sock", **given)
        ending.callback(made.close)
        engine = connect(f"unix://{folder}/engine.sock")
        ending.callback(engine.close)
        return made, engine

    return make


@pytest.fixture
def podman(speaking: Callable[..., tuple[StandIn, Engine]]) -> tuple[StandIn, Engine]:
    """A stand-in that says it is Podman."""
    return speaking()


@pytest.fixture
def docker(speaking: Callable[..., tuple[StandIn, Engine]]) -> tuple[StandIn, Engine]:
    """A stand-in that says it is Docker."""
    return speaking(ping=dict(standin.DOCKER))
