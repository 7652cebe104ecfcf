"""Commands in a container that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podbot.engine.engine import Engine


class Execs:
    """Commands in containers of one engine."""

    def __init__(self, engine: Engine):
        self._engine = engine
