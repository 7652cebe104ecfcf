"""Let the shared classes of tests explain their failures like any other."""

from __future__ import annotations

import os
import sys

import pytest

pytest.register_assert_rewrite(
    "command_behaviour", "file_behaviour", "session_behaviour", "workplace"
)


@pytest.fixture(autouse=True)
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python3` is this interpreter, and not a wrapper that takes its time to find one."""
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
