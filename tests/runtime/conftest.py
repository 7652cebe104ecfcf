"""A bus and a session on it."""

from __future__ import annotations

import pytest

from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session


@pytest.fixture
def bus() -> InProcessEventBus:
    return InProcessEventBus()


@pytest.fixture
def session(bus: InProcessEventBus) -> Session:
    return Session(bus=bus, session_id="s1")
