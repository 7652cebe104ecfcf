"""Let the shared classes of tests explain their failures like any other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in import PlainContainer

from podbot.sandbox.container import sandbox as backend

pytest.register_assert_rewrite(
    "command_behaviour", "file_behaviour", "session_behaviour", "workplace"
)


@pytest.fixture(autouse=True)
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python3` is this interpreter, and not a wrapper that takes its time to find one."""
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where container sections keep their workspaces: nowhere yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PODBOT_CACHE", str(folder))
    return folder


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlainContainer]]:
    """Plain processes in the place of containers; all are closed in the end."""
    monkeypatch.setattr(backend, "ContainerSandbox", PlainContainer)
    PlainContainer.made.clear()
    yield PlainContainer.made
    assert all(container.closed for container in PlainContainer.made)
