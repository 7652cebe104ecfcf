"""What tests of prompts share: a session on a bus of its own."""

from __future__ import annotations

import pytest

from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session


@pytest.fixture
def bus() -> InProcessEventBus:
    return InProcessEventBus()


@pytest.fixture
def session(bus: InProcessEventBus) -> Session:
    return Session(bus=bus)
