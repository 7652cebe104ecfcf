"""The conformance suite: what every sandbox backend must do, as tests anyone can run.

    from podbot.testing import SandboxConformance

    class TestMine(SandboxConformance):
        def open_sandbox(self, **options):
            return Sandbox(MyLauncher(**options))

Needs pytest and hypothesis (``pip install podbot[test]``); nothing else in podbot imports this.
"""

from __future__ import annotations

import pytest

# Before the parts are imported: a test that fails must say what the values were.
_PARTS = (
    "base", "commands", "files", "kernel", "lifetime", "paths", "processes", "searching",
    "transfers",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"podbot.testing.{part}" for part in _PARTS))

from podbot.testing.conformance import (  # noqa: E402 - must follow the line above
    AsyncSandboxConformance,
    SandboxConformance,
)

__all__ = ["AsyncSandboxConformance", "SandboxConformance"]
