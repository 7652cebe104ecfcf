"""What the container tests share: a small engine, folders on a disk, targets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_engine import SmallEngine

from podbot.sandbox import layers


@pytest.fixture
def own_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A layer root for one test alone, for those that count what is in it."""
    folder = Path(tempfile.mkdtemp(prefix="podbot-layers-", dir="/var/tmp")).resolve()
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(folder))
    yield folder
    layers.remove(folder)


@pytest.fixture
def engine(own_layers: Path) -> Iterator[SmallEngine]:
    """An engine as an ordinary user has it."""
    made = SmallEngine()
    yield made
    assert not made.containers.all, "a container was left behind"
    made.close()


@pytest.fixture
def roots_engine(own_layers: Path) -> Iterator[SmallEngine]:
    """An engine of root's."""
    if os.geteuid() != 0:
        pytest.skip("only root can start containers as another user")
    made = SmallEngine(rootful=True)
    yield made
    assert not made.containers.all, "a container was left behind"
    made.close()


@pytest.fixture
def target() -> Iterator[Path]:
    """A folder with a small project in it, on a disk."""
    folder = Path(tempfile.mkdtemp(prefix="podbot-target-", dir="/var/tmp")).resolve()
    folder.chmod(0o755)
    (folder / "a.txt").write_text("one\n")
    (folder / "src").mkdir()
    (folder / "src" / "b.py").write_text("b = 1\n")
    (folder / "link").symlink_to("a.txt")
    yield folder
    layers.remove(folder)
