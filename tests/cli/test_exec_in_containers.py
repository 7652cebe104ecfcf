"""`podbot exec` when the engine does not start the command, and the size that a terminal has.

What engines say here is what Podman 4.3 (with runc and runsc) and Docker 20.10 said.
"""

from __future__ import annotations

import fcntl
import os
import pty
import socket
import struct
import termios
from collections.abc import Callable, Iterator

import pytest
from service_of_containers import ServiceOfContainers, container, frame, reply, running
from standin import Asked

from podbot import api
from podbot.cli import main
from podbot.engine import labels, refusals
from podbot.engine.execs import ExecSpec
from podbot.errors import Kind

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"

RUNC = "Error: runc: exec failed: unable to start container process: "
HANGS_UP = "Error: read unixpacket @->/proc/self/fd/13/attach: read: connection reset by peer\n"
NOT_FOUND = ": OCI runtime attempted to invoke a command that was not found\n" + HANGS_UP
DOCKER = "OCI runtime exec failed: exec failed: unable to start container process: "


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceOfContainers]:
    with running() as made:
        monkeypatch.setenv("PODBOT_ENGINE_SOCKET", made.url)
        made.containers = [container("one", labels.owner_label())]
        yield made


@pytest.fixture
def says(service: ServiceOfContainers) -> Callable[[int, str, int], None]:
    """Has the next command print this, and end so."""

    def put(stream: int, text: str, status: int) -> None:
        def start(connection: socket.socket, asked: Asked) -> None:
            data = text.encode()
            framed = data if asked.json()["Tty"] else frame(stream, data)
            connection.sendall(UPGRADED + framed)
            connection.shutdown(socket.SHUT_WR)

        service.on(r"POST .*/exec/[^/]+/start", start)
        ended = {"Running": False, "ExitCode": status, "Pid": 0}
        service.on(r"GET .*/exec/[^/]+/json", reply(ended))

    return put


@pytest.fixture
def no_input() -> Iterator[None]:
    kept, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    yield
    os.dup2(kept, 0)
    for fd in (kept, null):
        os.close(fd)


@pytest.mark.usefixtures("no_input")
@pytest.mark.parametrize("how", [(), ("--detach",)])
@pytest.mark.parametrize(
    "words, said, given, status, told",
    [
        (("--workdir=/no", "--", "ls"), RUNC + 'chdir to cwd ("/no") set in config.json failed: '
         "no such file or directory" + NOT_FOUND, 127, 125, "there is no folder /no in"),
        (("--workdir=/f", "--", "ls"), RUNC + 'chdir to cwd ("/f") set in config.json failed: '
         "not a directory: OCI runtime error\n", 125, 125, "/f is not a folder in"),
        (("--workdir=/x", "--", "ls"), RUNC + 'chdir to cwd ("/x") set in config.json failed: '
         "permission denied: OCI permission denied\n", 126, 125, "/x may not be entered in"),
        (("--workdir=/no", "--", "ls"), "Error: runsc: executing processes for container: failed "
         'to find initial working directory "/no": no such file or directory' + NOT_FOUND, 127,
         125, "there is no folder /no in"),
        (("--", "no"), RUNC + 'exec: "no": executable file not found in $PATH' + NOT_FOUND, 127,
         127, "there is no command no in"),
        (("--", "/no"), RUNC + 'exec: "/no": stat /no: no such file or directory' + NOT_FOUND,
         127, 127, "there is no command /no in"),
        (("--", "/f"), RUNC + 'exec: "/f": permission denied: OCI permission denied\n', 126, 126,
         "/f cannot be executed in"),
        (("--", "/f"), "Error: crun: something odd: OCI runtime error\n", 125, 125, "odd"),
    ],
)  # fmt: skip
def test_what_podman_does_not_start_is_told_in_plain_words(
    says: Callable[[int, str, int], None],
    capfd: pytest.CaptureFixture[str],
    how: tuple[str, ...],
    words: tuple[str, ...],
    said: str,
    given: int,
    status: int,
    told: str,
) -> None:
    says(2, said, given)

    assert main(["exec", *how, "one", *words]) == status

    shown = capfd.readouterr()
    assert shown.out == "" and told in shown.err and "remedy: " in shown.err
    assert "container one" in shown.err and "unixpacket" not in shown.err
    assert "OCI" not in shown.err or told == "odd"


@pytest.mark.usefixtures("no_input")
@pytest.mark.parametrize(
    "words, said, status, told",
    [
        (("--workdir=/no", "--", "ls"), DOCKER + 'chdir to cwd ("/no") set in config.json failed: '
         "no such file or directory: unknown", 125, "there is no folder /no in"),
        (("--", "no"), DOCKER + 'exec: "no": executable file not found in $PATH: unknown', 127,
         "there is no command no in"),
        (("--", "/f"), DOCKER + 'exec: "/f": permission denied: unknown', 126, "/f cannot be "),
        (("--user=no", "--", "id"), "unable to find user no: no matching entries in passwd file",
         125, "has no user or group no"),
    ],
)  # fmt: skip
def test_what_docker_does_not_start_is_told_in_plain_words_and_not_on_stdout(
    service: ServiceOfContainers,
    says: Callable[[int, str, int], None],
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
    status: int,
    told: str,
) -> None:
    says(1, said + "\r\n", 126)
    assert main(["exec", "one", *words]) == status
    shown = capfd.readouterr()
    assert shown.out == "" and told in shown.err and "config.json" not in shown.err

    # Without streams it refuses the call.
    version = {"Api-Version": "1.41", "Server": "Docker/20.10.24 (linux)"}
    service.on(r"GET /_ping", reply(b"OK", headers=version))
    service.on(r"POST .*/exec/[^/]+/start", reply({"message": said}, 400))
    assert main(["exec", "--detach", "one", *words]) == status
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("status", [3, 127])
def test_a_command_that_only_talks_so_is_shown_whole(
    says: Callable[[int, str, int], None],
    no_input: None,
    capfd: pytest.CaptureFixture[str],
    status: int,
) -> None:
    text = "Error: my tool: failed\n" if status == 127 else f"{DOCKER}really\n"
    says(1, text, status)

    assert main(["exec", "one", "--", "sh"]) == status

    assert capfd.readouterr().out == text


def test_what_is_held_back_comes_when_it_is_too_much_for_a_refusal() -> None:
    taken: list[bytes] = []
    held = refusals.Held(lambda _, data: taken.append(data), ExecSpec(("no",)))

    held.take(1, DOCKER.encode())
    assert taken == []
    held.take(1, bytes(refusals.HELD))
    held.take(2, b"more")

    assert b"".join(taken) == DOCKER.encode() + bytes(refusals.HELD) + b"more"
    assert held.refusal(126) is None


def test_a_connection_that_is_lost_loses_no_output(
    service: ServiceOfContainers, no_input: None, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(connection: socket.socket, _: Asked) -> None:
        connection.sendall(UPGRADED + frame(1, DOCKER.encode()) + b"\x01half")

    service.on(r"POST .*/exec/[^/]+/start", start)

    assert main(["exec", "one", "--", "sh"]) == 125
    assert capfd.readouterr().out == DOCKER


def test_a_folder_to_start_in_is_named_from_the_root(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exec", "one", "--workdir=here", "--", "ls"]) == 125
    assert "absolute" in capsys.readouterr().err
    assert service.asked == []


@pytest.mark.parametrize(
    "status, remedy", [("paused", "podman unpause one"), ("exited", "podbot ps")]
)
def test_a_container_that_does_not_run_is_told_so(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str], status: str, remedy: str
) -> None:
    service.containers = [container("one", labels.owner_label(), State=status)]

    assert main(["exec", "one", "--", "ls"]) == 125

    told = capsys.readouterr().err
    assert f"container one does not run: it is {status}" in told and remedy in told
    assert not any("/exec" in each.path for each in service.asked)


def test_an_engines_own_words_name_the_container_as_people_do(
    service: ServiceOfContainers, no_input: None, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on(r"POST .*/containers/[^/]+/exec", reply({"message": "no more room"}, 500))

    assert main(["exec", "one", "--", "ls"]) == 125

    assert "in container one: no more room" in capsys.readouterr().err


def test_a_terminal_has_its_size_from_the_start(
    service: ServiceOfContainers, says: Callable[[int, str, int], None]
) -> None:
    says(1, "", 0)
    person, program = pty.openpty()
    try:
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("4H", 33, 44, 0, 0))
        assert api.exec(api.ExecRequest("one", ("sh",)), api.Streams(program, program, 2)) == 0
    finally:
        os.close(person)
        os.close(program)

    started = next(each for each in service.asked if each.path.endswith("/start")).json()
    assert (started["h"], started["w"]) == (33, 44)  # Podman's words
    assert started["ConsoleSize"] == [33, 44]  # Docker's


def test_what_a_command_passes_on_from_an_engine_of_its_own_is_its_own() -> None:
    said = b"Error: crun: executable file `nosuch` not found in $PATH: No such file or directory"
    said += b": OCI runtime attempted to invoke a command that was not found\n"
    taken: list[bytes] = []
    held = refusals.Held(lambda _, data: taken.append(data), ExecSpec(("podman", "run", "nosuch")))
    held.take(2, said)
    assert taken == [said] and held.refusal(127) is None


@pytest.mark.parametrize(
    ("argv", "workdir", "said", "kind"),
    [
        ("x", None, "error adding pid 5 to cgroups: no such file or directory", Kind.EXEC_FAILED),
        ("chdir-tool", "/w", 'exec: "chdir-tool": executable file not found in $PATH',
         Kind.COMMAND_NOT_FOUND),
        ("/f", None, "open executable: Permission denied", Kind.COMMAND_NOT_EXECUTABLE),
        ("ls", "/w", 'chdir to cwd ("/w") set in config.json failed: no such file or directory',
         Kind.BAD_CWD),
    ],
)  # fmt: skip
def test_only_what_is_named_is_blamed(
    argv: str, workdir: str | None, said: str, kind: Kind
) -> None:
    spec = ExecSpec((argv,), workdir=workdir)
    line = f"OCI runtime exec failed: {said}"
    assert refusals.is_refusal(line.encode(), spec)
    assert refusals.error(line, "one", spec).kind is kind
