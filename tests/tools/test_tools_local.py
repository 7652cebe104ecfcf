"""The nine tools on plain processes."""

from __future__ import annotations

from typing import Any

from section_behaviour import CommandToolBehaviour
from workplace import Place

from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection


class TestUnsafeLocal(CommandToolBehaviour):
    eval_characters = 2000
    takes_strings = False

    def make_section(self, session: Session, **config: Any) -> UnsafeLocalSandboxSection:
        return UnsafeLocalSandboxSection(session=session, config=UnsafeLocalSandboxConfig(**config))


def test_one_string_is_for_a_shell_if_that_was_asked_for() -> None:
    session = Session(bus=InProcessEventBus())
    config = UnsafeLocalSandboxConfig(shell_strings=True)
    place = Place(session, UnsafeLocalSandboxSection(session=session, config=config))
    assert place.ok("shell_execute", command="echo a b | wc -w").stdout.strip() == "2"
    assert "`sh -c`" in place.prompt.render(session=session).text
    place.section.close()
