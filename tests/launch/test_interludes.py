"""What podbot says while a command runs, between the command's own doings."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from screen import until

from podbot.launch import attach as attaching
from podbot.launch.attach import Streams, attach
from podbot.launch.interludes import Interludes
from podbot.sandbox import ops
from podbot.sandbox.local import LocalSandbox

DRAWS = r"""
echo begun
until [ -e go ]; do sleep 0.02; done
printf '\033[?1049h'; : > drew
until [ -e over ]; do sleep 0.02; done
printf '\033[?1049l'
until [ -e end ]; do sleep 0.02; done
"""


def test_what_is_said_right_after_a_program_took_the_screen_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    interludes = Interludes(lambda text, _: told.append(text))
    look = attaching._Attached._look_at_the_clock

    def slow(attached: attaching._Attached) -> None:
        """So much goes on between looking what there is to read and telling."""
        if not (tmp_path / "go").exists():
            (tmp_path / "go").touch()
            until((tmp_path / "drew").exists)
            interludes.say("news")
        look(attached)

    monkeypatch.setattr(attaching._Attached, "_look_at_the_clock", slow)
    near, far = os.openpty()
    with LocalSandbox(tmp_path) as sandbox:
        command = ops.command(["sh", "-c", DRAWS], None, None)
        streams = Streams(far, far, far)
        thread = threading.Thread(
            target=attach, args=(sandbox, command, streams), kwargs={"interludes": interludes}
        )
        thread.start()
        seen = b""
        while b"1049h" not in seen:
            seen += os.read(near, 4096)
        assert told == []
        (tmp_path / "over").touch()
        until(lambda: told == ["news"])
        (tmp_path / "end").touch()
        thread.join(60)
    interludes.close()
    os.close(near)
    os.close(far)
