"""How long a call may last at most."""

from __future__ import annotations

import pytest

import podbot.sandbox
from podbot.errors import SandboxError
from podbot.sandbox import Limits


@pytest.mark.parametrize("backend", ["local", "memory"])
def test_the_longest_time_is_eleven_days(backend: str) -> None:
    with podbot.sandbox.open(backend) as sandbox:
        sandbox.write("a", "needle\n")
        for pattern in ("needle", "(?=needle)n"):
            assert sandbox.grep(pattern, timeout=1_000_000).matches
        with pytest.raises(SandboxError, match="eleven days"):
            sandbox.grep("needle", timeout=1e300)


def test_commands_and_limits_may_last_as_long() -> None:
    with podbot.sandbox.open("local", limits=Limits(wall_time=1e300)) as sandbox:
        assert sandbox.exec(["true"]).ok
        assert sandbox.exec(["true"], timeout=1_000_000).ok
        assert sandbox.python("1 + 1", timeout=1_000_000).value == "2"
        with pytest.raises(SandboxError, match="eleven days"):
            sandbox.exec(["true"], timeout=1_000_001)
