"""`podbot exec` on real engines when their runtime does not start the command, and terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios

import pytest
from screen import PODBOT
from services import Service

from podbot import api
from podbot.engine import Engine

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.podman,
    pytest.mark.engines("rootful", "rootless", "docker", "runsc"),
]


@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_what_is_not_started_is_told_in_plain_words(
    service: Service, name: str, how: tuple[str, ...]
) -> None:
    def refused(*words: str, code: int) -> str:
        done = subprocess.run(
            [*PODBOT, "exec", *how, name, *words],
            env=dict(service.environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert "OCI" not in done.stderr and "remedy: " in done.stderr
        return done.stderr

    told = refused("--workdir=/no/such", "--", "ls", code=125)
    assert f"there is no folder /no/such in container {name}" in told
    assert "no command no-such" in refused("--", "no-such", code=127)
    assert "no command /bin/no-such" in refused("--", "/bin/no-such", code=127)
    assert "/etc/passwd cannot be executed" in refused("--", "/etc/passwd", code=126)
    assert "no user or group nobody-here" in refused("--user=nobody-here", "--", "id", code=125)


@pytest.mark.engines("rootful", "rootless")
def test_a_terminal_has_its_size_before_the_command_looks(opened: Engine, name: str) -> None:
    person, program = pty.openpty()
    try:
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("4H", 33, 44, 0, 0))
        request = api.ExecRequest(name, ("stty", "size"))
        assert api.exec(request, api.Streams(program, program, 2), opened) == 0
        assert os.read(person, 100) == b"33 44\r\n"
    finally:
        os.close(person)
        os.close(program)
