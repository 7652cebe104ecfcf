"""podbot's own service, and tunnels: started when needed, ended however podbot ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import standin

from podbot.engine import ConnectOptions, Engine, connect, connect_with_runtime
from podbot.engine.finding import _service, leash
from podbot.engine.finding._service import ServiceDialer
from podbot.engine.finding.endpoints import parse
from podbot.engine.finding.leash import Leashed, PrivateFolder
from podbot.engine.http import tunnel
from podbot.engine.http.client import Call, Purpose
from podbot.engine.http.tunnel import TunnelDialer
from podbot.errors import ContainerError, Kind

HERE = Path(__file__).parent


def until(true: Callable[[], object], what: str = "it did not happen") -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def processes_with(words: str) -> list[int]:
    """The processes whose command line holds these words."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if words in line:
                found.append(int(name))
    return found


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to kill what was told to end, or to miss that it died."""
    monkeypatch.setattr("podbot.engine.finding.leash.END_SECONDS", 60.0)
    monkeypatch.setattr("podbot.engine.finding._service.NOTICE_SECONDS", 60.0)
    monkeypatch.setattr("podbot.engine.finding._service.START_SECONDS", 60.0)
    monkeypatch.setattr("podbot.engine.http.tunnel.START_SECONDS", 60.0)


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which podman is installed and no engine is to be found."""
    program = folder / "bin" / "podman"
    program.parent.mkdir()
    # -S: the stand-in needs nothing but the standard library, and starts at once.
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE}/stand_in_podman.py "$@"\n')
    program.chmod(0o755)
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setattr("podbot.engine.finding.candidates.sockets", lambda _: iter(()))
    monkeypatch.setattr("podbot.engine.finding.candidates.connections_mentioned", lambda _: False)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {"PATH": path, "XDG_RUNTIME_DIR": str(folder / "run"), "HOME": str(folder)}


@pytest.fixture
def find(installed: dict[str, str]) -> Iterator[Callable[..., Engine]]:
    """Searches for an engine, and closes what was found at the end."""
    with ExitStack() as ending:

        def make(**more: str) -> Engine:
            engine = connect(options=ConnectOptions(environment=installed | more))
            ending.callback(engine.close)
            return engine

        yield make


def folders(installed: dict[str, str]) -> list[str]:
    return os.listdir(installed["XDG_RUNTIME_DIR"])


def test_a_service_is_started_where_podman_is_installed(
    find: Callable[..., Engine], installed: dict[str, str]
) -> None:
    engine = find()

    engine.ping()

    assert engine.found_by == "podbot's own Podman service"
    (name,) = folders(installed)
    private = Path(installed["XDG_RUNTIME_DIR"], name)
    assert private.stat().st_mode & 0o777 == 0o700
    assert engine.endpoint.path == f"{private}/engine.sock"


def test_closing_the_last_engine_ends_the_service(
    find: Callable[..., Engine], installed: dict[str, str]
) -> None:
    first, second = find(), find()
    path = first.endpoint.path
    assert second.endpoint.path == path
    assert len(processes_with(f"stand_in_podman.py system service --time=300 unix://{path}")) == 1

    first.close()
    second.ping()
    second.close()

    assert processes_with(path) == []
    assert folders(installed) == []


def test_letting_go_of_an_engine_ends_the_service(
    find: Callable[..., Engine], installed: dict[str, str]
) -> None:
    engine = connect(options=ConnectOptions(environment=installed))
    path = engine.endpoint.path

    del engine

    assert processes_with(path) == []


def test_a_service_that_died_is_started_again(find: Callable[..., Engine]) -> None:
    engine = find()
    engine.ping()
    with pytest.raises(ContainerError) as caught:
        engine.client.call(Call("POST", "/die", Purpose("kill it")))
    assert caught.value.kind is Kind.CONNECTION_FAILED

    engine.ping()


def test_a_service_that_ends_between_look_and_call_is_started_again(
    find: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = find()
    own = engine.client._dialer.service  # type: ignore[attr-defined]
    engine.client._take_all()[0].close()
    # The first look says that it runs; then it is found dead.
    dialled = _service.SocketDialer.dial
    calls = []

    def once_too_late(self: _service.SocketDialer, seconds: float | None) -> socket.socket:
        if not calls:
            calls.append(1)
            own._running.end()
            os.unlink(own.path)
        return dialled(self, seconds)

    monkeypatch.setattr(_service.SocketDialer, "dial", once_too_late)

    engine.ping()


def test_a_socket_that_refuses_while_the_service_runs_is_an_error(
    find: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.engine.finding._service.NOTICE_SECONDS", 0.05)
    engine = find()
    engine.client._take_all()[0].close()
    os.unlink(engine.endpoint.path)

    with pytest.raises(ContainerError) as caught:
        engine.ping()
    assert caught.value.kind is Kind.SOCKET_NOT_FOUND


def test_a_podman_that_does_not_start_says_why(
    find: Callable[..., Engine], installed: dict[str, str]
) -> None:
    with pytest.raises(ContainerError, match="something is wrong with this podman") as caught:
        find(STAND_IN="fails")

    assert caught.value.kind is Kind.NO_ENGINE
    assert folders(installed) == []


def test_a_podman_that_takes_too_long_is_given_up(
    find: Callable[..., Engine], installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.engine.finding._service.START_SECONDS", 0.1)

    with pytest.raises(ContainerError, match="took too long"):
        find(STAND_IN="deaf")
    assert folders(installed) == []


def test_a_service_that_ignores_being_told_is_killed(
    find: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.engine.finding.leash.END_SECONDS", 0.2)
    engine = find(STAND_IN="stubborn")
    engine.ping()

    engine.close()

    # Killed, and nobody's child any more: who buries it is not known, nor when.
    until(lambda: not processes_with(engine.endpoint.path), "the service lives on")


CHILD = """
    import os, signal, sys
    import podbot.engine.finding.candidates as candidates
    from podbot.engine import ConnectOptions, connect
    candidates.sockets = lambda _: iter(())
    candidates.connections_mentioned = lambda _: False
    engine = connect(options=ConnectOptions(environment=dict(os.environ)))
    engine.ping()
    print(engine.endpoint.path, flush=True)
"""


def child(installed: dict[str, str], more: str) -> subprocess.Popen[str]:
    # Coverage, if it runs, must measure this process too.
    kept = ("COV", "PYTHONPATH")
    environment = {n: v for n, v in os.environ.items() if any(word in n for word in kept)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD) + more],
        env=environment | installed,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_service_ends_when_the_interpreter_does(installed: dict[str, str]) -> None:
    process = child(installed, "")
    path = process.communicate(timeout=120)[0].strip()

    assert process.returncode == 0 and path
    until(lambda: not processes_with(path), "the service lives on")
    assert folders(installed) == []


def test_a_service_ends_when_podbot_is_killed(installed: dict[str, str]) -> None:
    process = child(installed, "os.kill(os.getpid(), signal.SIGKILL)")
    path = process.communicate(timeout=120)[0].strip()
    assert process.returncode == -signal.SIGKILL

    until(lambda: not processes_with(path), "the service lives on")
    assert len(folders(installed)) == 1

    PrivateFolder(installed).remove()  # whoever comes next cleans up

    assert folders(installed) == []


def test_a_fork_has_a_service_of_its_own_and_leaves_the_parents_alone(
    find: Callable[..., Engine],
) -> None:
    engine = find()
    engine.ping()
    path = engine.endpoint.path
    reading, writing = os.pipe()
    forked = os.fork()
    if forked == 0:
        try:
            engine.ping()
            other = engine.client._dialer.service.path  # type: ignore[attr-defined]
            engine.close()
            os.write(writing, f"{other} {len(processes_with(other))}".encode())
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        other, left = told.read().split()

    assert other != path and left == "0"
    engine.ping()
    assert processes_with(path)


def test_a_forks_copy_that_is_only_closed_ends_nothing(find: Callable[..., Engine]) -> None:
    engine = find()
    forked = os.fork()
    if forked == 0:
        engine.close()
        os._exit(0)
    os.waitpid(forked, 0)

    engine.ping()


def test_a_service_can_have_another_runtime(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in installed.items():
        monkeypatch.setenv(name, value)

    with connect_with_runtime("runsc") as engine:
        engine.ping()
        words = f"--runtime runsc system service --time=300 unix://{engine.endpoint.path}"
        assert processes_with(words)

    monkeypatch.setenv("PATH", "")
    with pytest.raises(ContainerError, match="runsc cannot be used") as caught:
        connect_with_runtime("runsc")
    assert caught.value.kind is Kind.UNSUPPORTED


def test_a_service_that_nobody_knows_of_can_be_released(installed: dict[str, str]) -> None:
    dialer = ServiceDialer("/nowhere/podman", installed)
    _service._stop_all()

    dialer.close()

    with pytest.raises(FileNotFoundError):
        os.stat(dialer.service.path)


# The folder


def test_a_folder_is_made_where_it_is_private_and_short(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = folder / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    for place in (str(long), "relative", str(folder / "missing"), ""):
        assert leash._base({"XDG_RUNTIME_DIR": place}) == str(folder)
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert leash._base({}) == "/tmp"


def test_a_folder_in_use_is_not_swept(folder: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(folder)}
    used = PrivateFolder(environment)
    (folder / f"{leash.PREFIX}odd").mkdir()  # no lock in it: not ours to judge
    (folder / f"{leash.PREFIX}file").write_text("")

    another = PrivateFolder(environment)

    assert os.path.isdir(used.path)
    another.remove()
    used.remove()
    assert not os.path.exists(used.path)


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    really = leash._lock

    def swept_once(fd: int) -> bool:
        if not made:
            made.append(os.readlink(f"/proc/self/fd/{fd}"))
            leash._remove(os.path.dirname(made[0]))
        return really(fd)

    monkeypatch.setattr(leash, "_lock", swept_once)

    found = PrivateFolder({"XDG_RUNTIME_DIR": str(folder)})

    assert found.path != os.path.dirname(made[0]) and os.listdir(found.path) == ["lock"]
    found.remove()


def test_another_users_folder_is_not_swept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = PrivateFolder({"XDG_RUNTIME_DIR": str(folder)})
    used.forget()
    monkeypatch.setattr("os.geteuid", lambda: 4242)

    leash.sweep(str(folder))

    assert os.path.isdir(used.path)


def test_a_leashed_program_tells_what_it_printed(folder: Path) -> None:
    program = Leashed(["sh", "-c", "echo out; echo err >&2"], os.environ, str(folder / "log"))
    until(lambda: not program.alive)

    assert program.said() == "out\nerr"
    program.end()
    os.unlink(folder / "log")
    assert program.said() == ""


def test_everything_in_the_leashed_group_ends(folder: Path) -> None:
    seconds = f"98765{os.getpid():07}"  # none of which begins another's
    # Put together by the shell, so that only the two programs have these words in a row.
    script = f"set -- sleep; ($1 {seconds} & ); exec $1 {seconds}"
    program = Leashed(["sh", "-c", script], os.environ, str(folder / "log"))
    until(lambda: len(processes_with(f"sleep {seconds}")) == 2)

    program.end()

    # One of them is nobody's child: it was told to end, and is not waited for long.
    until(lambda: not processes_with(f"sleep {seconds}"), "it lives on")


# Tunnels


SSH = """\
#!{python} -S
# In the place of ssh: leads -L's local socket to the remote one, on this same machine.
import os, socket, sys, threading
words = sys.argv[1:]
with open({record!r}, "w") as record:
    record.write("\\n".join(words))
if "{mode}" == "refused":
    sys.exit("dev@box: Permission denied (publickey).")
local, remote = words[words.index("-L") + 1].split(":")
listener = socket.socket(socket.AF_UNIX)
listener.bind(local)
listener.listen()
def carry(one, other):
    while data := one.recv(65536):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
while True:
    near, _ = listener.accept()
    far = socket.socket(socket.AF_UNIX)
    far.connect(remote)
    threading.Thread(target=carry, args=(near, far), daemon=True).start()
    threading.Thread(target=carry, args=(far, near), daemon=True).start()
"""


@pytest.fixture
def ssh(folder: Path) -> Callable[[str], dict[str, str]]:
    """Makes an environment with a program in the place of ssh."""

    def make(mode: str = "") -> dict[str, str]:
        program = folder / "ssh"
        record = str(folder / "words")
        program.write_text(SSH.format(python=sys.executable, record=record, mode=mode))
        program.chmod(0o755)
        (folder / "run").mkdir(exist_ok=True)
        path = f"{folder}:{os.environ['PATH']}"
        return {"PATH": path, "XDG_RUNTIME_DIR": str(folder / "run")}

    return make


def test_an_ssh_endpoint_is_reached_through_a_tunnel_that_ends_with_the_engine(
    folder: Path, ending: ExitStack, ssh: Callable[..., dict[str, str]]
) -> None:
    made = standin.on_socket(folder / "far.sock")
    ending.callback(made.close)
    made.on("GET /v1.41/info", standin.reply({"Rootless": True}))
    options = ConnectOptions(identity="/key", environment=ssh())

    engine = connect(f"ssh://dev@box:2222{folder}/far.sock", options)
    assert os.listdir(folder / "run") == []  # nothing until the first call
    assert engine.facts.rootless and not engine.facts.local
    words = (folder / "words").read_text().split("\n")
    engine.close()

    assert words[-2:] == ["--", "dev@box"]
    assert "BatchMode=yes" in words and "ExitOnForwardFailure=yes" in words
    assert words[words.index("-i") + 1] == "/key" and words[words.index("-p") + 1] == "2222"
    assert processes_with(f"{folder}/ssh") == []
    assert os.listdir(folder / "run") == []


def test_a_tunnel_that_broke_is_made_again(
    folder: Path, ending: ExitStack, ssh: Callable[..., dict[str, str]]
) -> None:
    ending.callback(standin.on_socket(folder / "far.sock").close)
    dialer = TunnelDialer(parse(f"ssh://box{folder}/far.sock"), ssh())
    ending.callback(dialer.close)
    dialer.dial(60).close()
    (pid,) = (each for each in processes_with(f"{folder}/ssh") if _is_python(each))
    os.kill(pid, signal.SIGKILL)
    until(lambda: not dialer._running.alive)  # type: ignore[union-attr]

    dialer.dial(60).close()


def _is_python(pid: int) -> bool:
    return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]


def test_an_ssh_that_is_refused_says_why(folder: Path, ssh: Callable[..., dict[str, str]]) -> None:
    engine = connect(f"ssh://box{folder}/far.sock", ConnectOptions(environment=ssh("refused")))

    with pytest.raises(ContainerError, match="Permission denied") as caught:
        engine.ping()
    engine.close()

    assert caught.value.kind is Kind.CONNECTION_FAILED
    assert "without a password" in str(caught.value.remedy)


def test_a_tunnel_that_takes_too_long_is_given_up(
    folder: Path, ssh: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = ssh()
    (folder / "ssh").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("podbot.engine.http.tunnel.START_SECONDS", 0.1)

    engine = connect(f"ssh://box{folder}/far.sock", ConnectOptions(environment=environment))
    with pytest.raises(ContainerError, match="took too long"):
        engine.ping()
    engine.close()


def test_a_fork_makes_a_tunnel_of_its_own(
    folder: Path, ending: ExitStack, ssh: Callable[..., dict[str, str]]
) -> None:
    ending.callback(standin.on_socket(folder / "far.sock").close)
    dialer = TunnelDialer(parse(f"ssh://box{folder}/far.sock"), ssh())
    ending.callback(dialer.close)
    dialer.dial(60).close()
    forked = os.fork()
    if forked == 0:
        try:
            dialer.close()  # the parent's: nothing happens
            dialer.dial(60).close()
            dialer.close()
        finally:
            os._exit(0 if len(os.listdir(folder / "run")) == 1 else 1)
    assert os.waitpid(forked, 0)[1] == 0

    dialer.dial(60).close()


def test_no_word_of_an_endpoint_becomes_an_option_of_ssh() -> None:
    words = tunnel.command(parse("ssh://dev@box/run/p.sock"), "/local")

    assert words[words.index("--") + 1 :] == ["dev@box"]
    assert words[words.index("-L") + 1] == "/local:/run/p.sock"
    assert "-i" not in words


# As root, sshd wants a folder that its service makes.
SSHD = ["/usr/sbin/sshd", *(["/run/sshd"] if os.geteuid() == 0 else [])]
ABSENT = [path for path in SSHD if not os.path.exists(path)]


@pytest.mark.skipif(bool(ABSENT), reason=f"{(ABSENT or SSHD)[0]} is not installed")
def test_the_real_ssh_leads_to_an_engine(
    folder: Path, ending: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending.callback(standin.on_socket(folder / "far.sock").close)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = [
        f"Port={port}", "ListenAddress=127.0.0.1", f"HostKey={folder}/host", "StrictModes=no",
        f"AuthorizedKeysFile={folder}/authorized", "PidFile=none", "UsePAM=no",
    ]  # fmt: skip
    daemon = subprocess.Popen(
        [SSHD[0], "-D", "-e", "-f", "/dev/null", *(word for o in options for word in ("-o", o))],
        stderr=subprocess.DEVNULL,
    )
    ending.callback(daemon.wait)
    ending.callback(daemon.kill)
    key = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    wrapper = folder / "ssh"
    known = f"-F /dev/null -o UserKnownHostsFile={folder}/known"
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh {known} "$@"\n')
    wrapper.chmod(0o755)

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listening, "sshd does not listen")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    place = f"ssh://127.0.0.1:{port}{folder}/far.sock"

    with connect(place, ConnectOptions(f"{folder}/user", environment=environment)) as engine:
        engine.ping()
