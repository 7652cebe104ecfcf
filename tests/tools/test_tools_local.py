"""The nine tools on plain processes."""

from __future__ import annotations

from typing import Any

from section_behaviour import CommandToolBehaviour

from podbot.runtime.session import Session
from podbot.tools import UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection


class TestUnsafeLocal(CommandToolBehaviour):
    eval_characters = 2000

    def make_section(self, session: Session, **config: Any) -> UnsafeLocalSandboxSection:
        return UnsafeLocalSandboxSection(session=session, config=UnsafeLocalSandboxConfig(**config))
