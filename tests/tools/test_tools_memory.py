"""The file tools on memory."""

from __future__ import annotations

from typing import Any

from section_behaviour import FileToolBehaviour

from podbot.runtime.session import Session
from podbot.tools import VfsToolsConfig, VfsToolsSection


class TestVfsTools(FileToolBehaviour):
    def make_section(self, session: Session, **config: Any) -> VfsToolsSection:
        return VfsToolsSection(session=session, config=VfsToolsConfig(**config))
