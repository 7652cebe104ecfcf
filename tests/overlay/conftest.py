"""What the overlay tests share: targets and sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import PYTHON, fill, new_folder, removed, until

from podbot.sandbox import Policy, layers
from podbot.sandbox.overlay.launcher import OverlaySandbox


@pytest.fixture
def own_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A layer root for one test alone, for those that count what is in it."""
    folder = new_folder()
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(folder))
    yield folder
    assert until(lambda: removed(folder))


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that is on a disk and outside of /tmp."""
    path = new_folder()
    yield path
    assert until(lambda: removed(path))  # it may hold layers


@pytest.fixture
def target(folder: Path) -> Path:
    """A folder with a small project in it."""
    return fill(folder)


@pytest.fixture(scope="module")
def shared_target(layers_root: Path) -> Iterator[Path]:
    """A project for the tests of one module together."""
    path = fill(new_folder())
    yield path
    layers.remove(path)


@pytest.fixture(scope="module")
def shared(shared_target: Path) -> Iterator[OverlaySandbox]:
    """One sandbox for all attacks of a module: each must leave it as closed as it was."""
    with OverlaySandbox(shared_target, discard=True, policy=Policy(python=PYTHON)) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(target: Path) -> Iterator[OverlaySandbox]:
    """A sandbox of one's own."""
    with OverlaySandbox(target, discard=True) as sandbox:
        yield sandbox
