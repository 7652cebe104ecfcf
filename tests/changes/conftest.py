"""What the tests of changes share: a folder on a disk, and sandboxes that work on it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import keep_in_the_state_folder

from podbot.changes.applying.journal import Journal
from podbot.config import places
from podbot.sandbox import layers


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The host's files get the modes a test names, and sandboxes' by the same rule."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Journals of other tests would have to be known here, too."""
    with tempfile.TemporaryDirectory(prefix="podbot-state-", dir="/var/tmp") as folder:
        monkeypatch.setenv("PODBOT_STATE", folder)
        yield Path(folder)


@pytest.fixture(params=["one disk", "two disks"])
def disks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whether what is replaced moves into the store or is copied there."""
    far = request.param == "two disks"
    with tempfile.TemporaryDirectory(
        prefix="podbot-state-", dir="/dev/shm" if far else "/var/tmp"
    ) as state:
        monkeypatch.setenv(places.STATE_VARIABLE, state)
        if far:
            monkeypatch.setattr(Journal, "store_for", keep_in_the_state_folder)
        yield request.param


@pytest.fixture
def target() -> Iterator[Path]:
    """An empty folder that is on a disk and outside of /tmp."""
    path = Path(tempfile.mkdtemp(prefix="podbot-target-", dir="/var/tmp")).resolve()
    yield path
    layers.remove(path)
