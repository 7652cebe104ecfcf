"""What the tests of runs share: a folder that a sandbox can keep the changes of."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podbot.sandbox import layers


@pytest.fixture
def target() -> Iterator[Path]:
    """An empty folder that is on a disk and outside of /tmp."""
    path = Path(tempfile.mkdtemp(prefix="podbot-target-", dir="/var/tmp")).resolve()
    yield path
    layers.remove(path)
