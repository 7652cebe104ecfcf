"""A sandbox may be opened over podbot itself, and what runs in it may change what it sees there."""

from __future__ import annotations

from pathlib import Path

import podbot
from podbot.sandbox import Terminal
from podbot.sandbox.overlay.launcher import OverlaySandbox

PACKAGE = Path(podbot.__file__).parent


def test_a_guest_needs_its_modules_no_more_once_it_runs() -> None:
    with OverlaySandbox(PACKAGE, discard=True) as sandbox:
        wrecked = "find . -name '*.py' -exec sh -c 'echo \"raise SystemExit\" > $1' - {} \\;"
        sandbox.exec(["sh", "-c", f"{wrecked}; find . -name __pycache__ | xargs rm -r"]).check()
        assert sandbox.read("sandbox/guest/requests.py") == b"raise SystemExit\n"

        assert sandbox.python("1 + 1").value == "2"
        assert sandbox.grep("raise", glob="sandbox/guest/main.py").matches
        assert sandbox.grep("(?=r)raise", glob="sandbox/guest/main.py").matches
        assert "sandbox/guest/main.py" in sandbox.glob("**/main.py")
        large = b"x" * (3 << 20)
        sandbox.write("large", large)
        assert sandbox.read("large") == large
        sandbox.move("sandbox", "elsewhere")
        sandbox.remove("elsewhere", recursive=True)
        with sandbox.spawn(["tty"], terminal=Terminal(12, 34)) as process:
            assert process.wait(60) == 0

    assert (PACKAGE / "sandbox" / "guest" / "main.py").read_text() != "raise SystemExit\n"
