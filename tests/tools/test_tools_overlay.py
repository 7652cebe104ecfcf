"""The nine tools on an overlay over a folder."""

from __future__ import annotations

from typing import Any

from section_behaviour import CommandToolBehaviour

from podbot.runtime.session import Session
from podbot.tools import OverlaySandboxConfig, OverlaySandboxSection


class TestOverlay(CommandToolBehaviour):
    def make_section(self, session: Session, **config: Any) -> OverlaySandboxSection:
        target = self.tmp_path / "target"
        target.mkdir(exist_ok=True)
        return OverlaySandboxSection(
            session=session, config=OverlaySandboxConfig(target=target, **config)
        )
