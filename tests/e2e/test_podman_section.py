"""The nine tools in a container: the very tests of the other backends, and what is Podman's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from services import Service

sys.path.append(str(Path(__file__).parents[1] / "tools"))
pytest.register_assert_rewrite("section_behaviour")

from section_behaviour import CommandToolBehaviour, Place  # noqa: E402 - found by the line above

from podbot.runtime.session import Session  # noqa: E402 - likewise
from podbot.tools.podman import (  # noqa: E402 - likewise
    PodmanSandboxConfig,
    PodmanSandboxSection,
)

pytestmark = [pytest.mark.e2e, pytest.mark.podman]


class TestPodman(CommandToolBehaviour):
    sees_workspace_path = True

    @pytest.fixture(autouse=True)
    def engine(self, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service = service
        monkeypatch.setenv("PODBOT_CACHE", str(tmp_path / "cache"))

    def make_section(self, session: Session, **config: Any) -> PodmanSandboxSection:
        chosen = PodmanSandboxConfig(image=self.service.image, **config)
        return PodmanSandboxSection(session=session, config=chosen)
