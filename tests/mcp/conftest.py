"""What tests of the MCP server share: a project, and a home for layers and records of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mcp_clients import until

from podbot.sandbox import layers


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder on a disk: what a person has, and the layers and records of what is done to it."""
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as name:
        place = Path(name).resolve()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PODBOT_LAYERS", str(place / "layers"))
            patch.setenv("PODBOT_STATE", str(place / "state"))
            yield place
        until(lambda: _removed(place / "layers"), "the removal of the layers")


def _removed(folder: Path) -> bool:
    """Whether it is gone: a zygote that ends may be removing what was discarded, too."""
    with suppress(OSError):
        layers.remove(folder)
    return not folder.exists()


@pytest.fixture
def project(folder: Path) -> Path:
    """A small project, new for each test."""
    made = Path(tempfile.mkdtemp(dir=folder))
    (made / "src").mkdir()
    (made / "src" / "app.py").write_text("print('old')\n")
    (made / "notes.txt").write_text("first\nsecond\n")
    return made
