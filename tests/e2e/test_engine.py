"""`podbot.engine` against real engines: Podman with and without root, and Docker."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from services import Service

from podbot.engine import (
    TOOLS,
    BindMount,
    BuildOrder,
    ContainerSpec,
    Engine,
    Entry,
    ExecSpec,
    Frames,
    OverlayMount,
    Profile,
    SandboxSettings,
    VolumeMount,
    agent_profile,
    connect_and_verify,
    owner_alive,
    pack,
)
from podbot.engine.labels import OWNER
from podbot.errors import ContainerError, Kind
from podbot.frozen import replace

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.podman,
    pytest.mark.engines("rootful", "rootless", "docker"),
]

podman_only = pytest.mark.engines("rootful", "rootless")
RUN = "podbot.e2e"


def until(true: Callable[[], object], what: str = "it did not happen") -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def kind_of(act: Callable[[], object]) -> Kind:
    with pytest.raises(ContainerError) as caught:
        act()
    assert caught.value.message
    return caught.value.kind


@pytest.fixture
def engine(service: Service) -> Iterator[Engine]:
    with connect_and_verify() as found:
        assert found.found_by == "PODBOT_ENGINE_SOCKET"
        yield found


class Maker:
    """Makes containers of the tests' image, and removes them at the end."""

    def __init__(self, engine: Engine, service: Service, ending: ExitStack):
        self._engine, self._service, self._ending = engine, service, ending
        self.tools = TOOLS
        if service.rootless:
            self.tools = replace(TOOLS, userns="keep-id:uid=65534,gid=65534")

    def spec(self, *command: str, profile: Profile | None = None) -> ContainerSpec:
        return ContainerSpec(
            self._service.image,
            command or ("sleep", "infinity"),
            profile=profile or self.tools,
            labels={RUN: self._service.run},
        )

    def made(self, spec: ContainerSpec) -> str:
        created = self._engine.containers.create(spec)
        self._ending.callback(self._engine.containers.remove, created.id)
        return created.id

    def running(self, spec: ContainerSpec | None = None) -> str:
        container = self.made(spec or self.spec())
        self._engine.containers.start(container)
        return container


@pytest.fixture
def make(engine: Engine, service: Service) -> Iterator[Maker]:
    with ExitStack() as ending:
        yield Maker(engine, service, ending)


def said(engine: Engine, container: str, *argv: str) -> str:
    done = engine.execs.run(container, ExecSpec(argv), seconds=60)
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode().strip()


def test_an_engine_says_what_it_is(engine: Engine, service: Service) -> None:
    facts, about = engine.facts, engine.about()

    assert facts.is_podman is not service.is_docker
    assert facts.rootless is service.rootless and facts.local
    assert facts.version and about.facts == facts
    assert {"podman", "docker"} & {part.name for part in about.components}
    assert "runc" in about.runtimes
    for warning in engine.warnings():  # by name, and no reason to stop
        assert "CVE-" in str(warning)


def test_a_container_of_the_tools_profile_is_what_it_says(
    engine: Engine, service: Service, make: Maker
) -> None:
    created = engine.containers.create(make.spec())
    engine.containers.start(created.id)
    try:
        verified = engine.containers.verify(created.id, make.spec())
        status = said(engine, created.id, "cat", "/proc/self/status").splitlines()
        found = dict(line.split(":\t") for line in status if ":\t" in line)
        assert found["Uid"].split()[0] == "65534" and found["Gid"].split()[0] == "65534"
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(found[name], 16) == 0, name
        assert found["NoNewPrivs"] == "1" and found["Seccomp"] == "2"
        assert said(engine, created.id, "sh", "-c", "touch /x 2>&1 || true").endswith("file system")
        mounts = said(engine, created.id, "cat", "/proc/mounts")
        (tmp,) = (line for line in mounts.splitlines() if " /tmp " in line)
        assert "nosuid,nodev" in tmp and "size=262144k" in tmp
        assert said(engine, created.id, "ls", "/sys/class/net") == "lo"
        assert verified.unenforced == created.unenforced
        assert bool(created.unenforced) is not engine.facts.limits_enforced
    finally:
        engine.containers.remove(created.id)


def test_limits_are_enforced_where_the_engine_says_so(engine: Engine, make: Maker) -> None:
    small = replace(make.tools, memory=64 * 1024 * 1024, pids=40)
    container = make.running(make.spec(profile=small))
    grow = ExecSpec(("python3", "-c", "x = b'x' * (200 << 20); print(len(x))"))
    fork = ExecSpec(("sh", "-c", "for i in $(seq 80); do sleep 5 & done 2>/dev/null; wait"))

    hog, bomb = engine.execs.run(container, grow), engine.execs.run(container, fork)

    if engine.facts.limits_enforced:
        assert hog.exit_code != 0 and bomb.exit_code != 0
    else:
        assert hog.exit_code == 0  # and `unenforced` said so


@pytest.mark.parametrize(
    "settings",
    [
        SandboxSettings(),
        SandboxSettings(selinux_label_mode="keep_default"),
        SandboxSettings(privileged=True),
        SandboxSettings(nested="rootless"),
        SandboxSettings(nested="sys_admin"),
        SandboxSettings(mount_dev_fuse=True),
    ],
    ids=["minimal", "labelled", "privileged", "nested", "sys_admin", "fuse"],
)
def test_a_container_of_each_agent_profile_is_what_it_says(
    engine: Engine, make: Maker, settings: SandboxSettings
) -> None:
    # The network is the launcher's choice; the tests' Docker has none to give.
    profile = replace(agent_profile(settings), network="none")
    for device in profile.devices:
        if not os.access(device.path, os.W_OK):
            pytest.skip(f"{device.path} is not writable")

    container = make.made(make.spec(profile=profile))
    if profile.privileged and not engine.facts.is_podman:
        return  # Docker starts it only on a machine that has every capability itself
    engine.containers.start(container)

    engine.containers.verify(container, make.spec(profile=profile))
    status = said(engine, container, "cat", "/proc/self/status")
    bounding = int(status.split("CapBnd:\t")[1].split()[0], 16)
    assert bool(bounding >> 21 & 1) is (profile.privileged or "SYS_ADMIN" in profile.add)
    said(engine, container, "touch", "/writable")
    if profile.devices and not profile.privileged:
        said(engine, container, "test", "-c", "/dev/fuse")


def test_a_wider_container_than_asked_for_is_found_out_and_removed(
    engine: Engine, service: Service, make: Maker
) -> None:
    """What a careless configuration would do: here the request itself is made to say more."""
    spec = make.spec(profile=replace(make.tools, add=("CHOWN",)))
    container = make.made(spec)

    assert (
        kind_of(lambda: engine.containers.verify(container, make.spec())) is Kind.PROFILE_MISMATCH
    )


def test_mounts_are_there_and_as_they_were_asked_for(
    engine: Engine, service: Service, make: Maker, tmp_path: Path
) -> None:
    odd = tmp_path / "odd, name: x"
    odd.mkdir()
    (odd / "file").write_text("from outside")
    for folder in (*odd.parents, odd):
        if os.stat(folder).st_uid == os.getuid() and folder.is_relative_to(tmp_path.parent):
            folder.chmod(0o755)
    (odd / "file").chmod(0o644)
    volume = f"podbot-e2e-{service.run}"
    spec = replace(
        make.spec(),
        mounts=(BindMount(str(odd), "/odd", read_only=True), VolumeMount(volume, "/kept")),
        workdir="/odd",
        env={"GREETING": "hello world"},
        hostname="inside",
    )
    try:
        container = make.running(spec)
        engine.containers.verify(container, spec)
        assert said(engine, container, "cat", "file") == "from outside"
        assert said(engine, container, "sh", "-c", "echo $GREETING") == "hello world"
        assert said(engine, container, "cat", "/proc/sys/kernel/hostname") == "inside"
        written = engine.execs.run(container, ExecSpec(("touch", "/odd/x")))
        assert b"Read-only" in written.stderr
    finally:
        engine.containers.remove(container)
        service.cli("volume", "rm", volume)


@podman_only
def test_an_overlay_keeps_changes_apart(
    engine: Engine, service: Service, make: Maker, tmp_path: Path
) -> None:
    source, upper, work = (tmp_path / name for name in ("source", "upper", "work"))
    for folder in (source, upper, work):
        folder.mkdir()
    (source / "kept").write_text("old")
    if not service.rootless:
        for folder in (source, upper):
            os.chown(folder, 65534, 65534)
            os.chown(source / "kept", 65534, 65534)
    spec = replace(
        make.spec(),
        mounts=(OverlayMount(str(source), "/workspace", str(upper), str(work)),),
        workdir="/workspace",
    )

    container = make.running(spec)
    engine.containers.verify(container, spec)
    said(engine, container, "sh", "-c", "echo new > made; echo changed > kept")

    assert (source / "kept").read_text() == "old" and not (source / "made").exists()
    assert (upper / "kept").read_text() == "changed\n" and (upper / "made").exists()
    if service.rootless:
        # The kernel's folder in it may belong to a sub-id: pytest could not remove it.
        engine.containers.remove(container)
        service.cli("unshare", "rm", "-rf", str(work))


def test_what_does_not_work_says_why(engine: Engine, service: Service, make: Maker) -> None:
    containers = engine.containers
    named = replace(make.spec(), name=f"podbot-e2e-{service.run}")
    container = make.made(named)
    absent = replace(make.spec(), image="localhost/podbot-no-such-image:latest")
    unmounted = replace(make.spec(), mounts=(BindMount("/no/such/folder", "/x"),))

    assert kind_of(lambda: containers.create(named)) is Kind.NAME_IN_USE
    assert kind_of(lambda: containers.create(absent)) is Kind.IMAGE_NOT_FOUND
    assert kind_of(lambda: containers.create(unmounted)) is Kind.CREATE_FAILED
    assert kind_of(lambda: containers.inspect("podbot-nope")) is Kind.CONTAINER_NOT_FOUND
    assert kind_of(lambda: containers.start("podbot-nope")) is Kind.CONTAINER_NOT_FOUND
    assert kind_of(lambda: containers.wait("podbot-nope")) is Kind.CONTAINER_NOT_FOUND
    run = ExecSpec(("true",))
    assert kind_of(lambda: engine.execs.run(container, run)) is Kind.CONTAINER_NOT_RUNNING
    assert kind_of(lambda: engine.execs.run("podbot-nope", run)) is Kind.CONTAINER_NOT_FOUND
    assert containers.remove("podbot-nope") is False


def test_a_container_that_cannot_start_says_why(engine: Engine, make: Maker) -> None:
    container = make.made(make.spec("/no/such/program"))

    def start() -> None:
        engine.containers.start(container)
        # With an init the engine's part succeeds, and the init says so instead.
        status = engine.containers.wait(container, 60)
        raise ContainerError(f"ended with {status}", kind=Kind.START_FAILED)

    assert kind_of(start) is Kind.START_FAILED


def test_a_container_is_stopped_killed_frozen_and_waited_for(engine: Engine, make: Maker) -> None:
    containers = engine.containers
    container = make.running()

    if engine.facts.limits_enforced:
        containers.pause(container)
        assert containers.inspect(container).status == "paused"
        containers.unpause(container)
    else:
        assert kind_of(lambda: containers.pause(container)) is Kind.UNSUPPORTED
    assert kind_of(lambda: containers.wait(container, 0.2)) is Kind.TIMEOUT
    containers.start(container)  # it runs: nothing happens
    containers.kill(container)
    assert containers.wait(container, 60) == 137
    assert not containers.inspect(container).running
    containers.start(container)
    containers.stop(container, 1)
    assert containers.inspect(container).status in ("exited", "stopped")


def test_a_process_that_ignores_signals_is_removed_all_the_same(
    engine: Engine, service: Service, make: Maker
) -> None:
    stubborn = make.spec("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    container = make.running(replace(stubborn, profile=replace(make.tools, init=False)))

    assert engine.containers.remove(container)

    assert container not in service.containers()


def test_containers_are_found_by_label_and_owner(
    engine: Engine, service: Service, make: Maker
) -> None:
    container = make.made(replace(make.spec(), name=f"podbot-e2e-{service.run}-listed"))

    (found,) = (each for each in engine.containers.list({RUN: service.run}) if each.id == container)

    assert found.name == f"podbot-e2e-{service.run}-listed" and not found.running
    assert owner_alive(found.labels[OWNER])
    assert container in {each.id for each in engine.containers.list({OWNER: None})}
    assert engine.containers.list({RUN: "another"}) == ()
    engine.containers.rename(container, f"podbot-e2e-{service.run}-other")
    assert engine.containers.inspect(container).name.endswith("-other")


# Streams


def test_a_command_is_run_with_its_streams_and_status(engine: Engine, make: Maker) -> None:
    container = make.running()
    script = "cat; echo out; echo err >&2; pwd; id -u; exit 3"

    done = engine.execs.run(
        container,
        ExecSpec(("sh", "-c", script), {"A": "b"}, workdir="/tmp", user="1234"),
        stdin=b"from stdin\n",
    )

    assert done.exit_code == 3 and done.stderr == b"err\n"
    assert done.stdout == b"from stdin\nout\n/tmp\n1234\n"
    assert engine.execs.run_detached(container, ExecSpec(("sh", "-c", "exit 7"))) == 7


def test_a_command_that_is_not_there_ends_as_a_shell_would_say(engine: Engine, make: Maker) -> None:
    done = engine.execs.run(make.running(), ExecSpec(("/no/such/program",)), seconds=60)

    assert done.exit_code in (126, 127)
    assert b"no such file" in done.stdout + done.stderr


def test_much_goes_through_in_both_directions(engine: Engine, make: Maker) -> None:
    container = make.running()
    data = os.urandom(900_000)

    done = engine.execs.run(container, ExecSpec(("cat",)), stdin=data, seconds=60)

    assert done.stdout == data and not done.truncated


def test_the_main_process_can_be_talked_to(engine: Engine, make: Maker) -> None:
    container = make.made(replace(make.spec("cat"), stdin=True))
    frames, heard = Frames(), b""
    with engine.containers.attach(container) as stream:
        stream.settimeout(60)
        engine.containers.start(container)
        stream.sendall(b"one\n")
        while heard != b"one\n":
            data = stream.recv()
            assert data, heard
            heard += b"".join(part for _, part in frames.feed(data))
        stream.close_write()
        while data := stream.recv():
            heard += b"".join(part for _, part in frames.feed(data))

    assert heard == b"one\n"
    assert engine.containers.wait(container, 60) == 0


def attach(container: str, *argv: str, **given: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "podbot", "exec", container, "--", *argv]
    return subprocess.Popen(command, **given)  # type: ignore[call-overload,no-any-return]


def test_a_terminal_is_one_inside_with_its_size(engine: Engine, make: Maker) -> None:
    container = make.running()
    person, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    script = 'test -t 0 && test -t 1 && while read x; do test "$x" && exit 9; stty size; done'
    process = attach(container, "sh", "-c", script, stdin=program, stdout=program)
    seen = b""

    def shows(size: bytes) -> bool:
        """Ask for the size again and again: it takes its own time to get there."""
        nonlocal seen
        os.write(person, b"\r")
        if select.select([person], [], [], 0.2)[0]:
            seen += os.read(person, 1000)
        return size in seen

    until(lambda: shows(b"31 97"))
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process.send_signal(signal.SIGWINCH)
    until(lambda: shows(b"40 120"))
    os.write(person, b"q\r")

    assert process.wait(60) == 9
    os.close(person)
    os.close(program)


def test_without_a_terminal_streams_stay_apart(engine: Engine, make: Maker) -> None:
    container = make.running()

    process = attach(
        container, "sh", "-c", "cat; echo err >&2; exit 4",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(b"through\n", timeout=60)

    assert (out, err, process.returncode) == (b"through\n", b"err\n", 4)


# Archives and images


def test_files_go_in_with_their_modes_before_the_start_and_after(
    engine: Engine, make: Maker, tmp_path: Path
) -> None:
    writable = replace(make.tools, read_only=False, user="0:0", userns=None)
    container = make.made(make.spec(profile=writable))
    entries = [
        Entry(".claude", "folder", 0o700),
        Entry(".claude/.credentials.json", mode=0o600, data=b"{}"),
        Entry("n" * 150, data=b"long"),
    ]

    engine.containers.put_archive(container, "/root", pack(entries))
    engine.containers.start(container)
    engine.containers.put_archive(container, "/tmp", pack([Entry("late", data=b"x")]))

    listed = said(engine, container, "stat", "-c", "%a %n", "/root/.claude/.credentials.json")
    assert listed == "600 /root/.claude/.credentials.json"
    assert said(engine, container, "cat", f"/root/{'n' * 150}") == "long"
    said(
        engine,
        container,
        "sh",
        "-c",
        "ln -s /etc/shadow /root/.claude/link; mkfifo /root/.claude/f",
    )
    done = engine.containers.download(container, "/root/.claude", str(tmp_path / "copy"))
    assert os.listdir(tmp_path / "copy") == [".credentials.json"]
    assert {name for name, _ in done.skipped} == {".claude/link", ".claude/f"}


def test_an_upload_or_download_that_fails_says_so(engine: Engine, make: Maker) -> None:
    container = make.running()
    archive = b"".join(pack([Entry("x", data=b"x")]))

    put, get = engine.containers.put_archive, engine.containers.get_archive
    assert kind_of(lambda: put("podbot-nope", "/tmp", archive)) is Kind.UPLOAD_FAILED
    assert kind_of(lambda: put(container, "/no/such", archive)) is Kind.UPLOAD_FAILED
    assert kind_of(lambda: get(container, "/nope")) is Kind.NOT_FOUND
    assert kind_of(lambda: get("podbot-nope", "/tmp")) in (Kind.NOT_FOUND, Kind.CONTAINER_NOT_FOUND)


@podman_only
def test_an_upload_to_a_full_disk_says_so(engine: Engine, make: Maker) -> None:
    container = make.running()
    much = (Entry(f"f{n}", data=b"z" * 1_000_000) for n in range(300))

    with pytest.raises(ContainerError, match="no space left") as caught:
        engine.containers.put_archive(container, "/tmp", pack(much))

    assert (caught.value.kind, caught.value.subject) == (Kind.UPLOAD_FAILED, container)


def root_folder() -> bytes:
    """A tar with one file: enough for an image."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("file")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"here"))
    return out.getvalue()


def test_images_are_imported_built_named_listed_and_removed(
    engine: Engine, service: Service
) -> None:
    images, name = engine.images, f"localhost/podbot-e2e-{service.run}"
    recipe = f"ARG BASE\nFROM $BASE\nCOPY f /\nLABEL {RUN}=x\n"
    files = [Entry("Containerfile", data=recipe.encode()), Entry("f", data=b"copied")]
    try:
        made = images.import_tar(root_folder(), f"{name}:base", ['CMD ["/file"]'])
        assert images.exists(f"{name}:base") and not images.exists(f"{name}:other")
        assert images.inspect(f"{name}:base").id.removeprefix("sha256:") == made.removeprefix(
            "sha256:"
        )
        order = BuildOrder((f"{name}:built",), arguments={"BASE": f"{name}:base"}, network="none")
        steps = list(images.build(pack(files), order))
        assert any("COPY" in step.text for step in steps)
        assert any(f"{name}:built" in image.names for image in images.list({RUN: "x"}))
        images.tag(f"{name}:built", f"{name}:again")
        assert images.exists(f"{name}:again")
        bad = BuildOrder((f"{name}:bad",), arguments={"BASE": f"{name}:base"}, network="none")
        broken = [Entry("Containerfile", data=b"ARG BASE\nFROM $BASE\nCOPY no /\n")]
        assert kind_of(lambda: list(images.build(pack(broken), bad))) is Kind.BUILD_FAILED
    finally:
        for tag in ("again", "built", "base"):
            images.remove(f"{name}:{tag}", force=True)
    assert not images.exists(f"{name}:built")
    assert images.remove(f"{name}:built") is False


def test_an_image_that_cannot_be_pulled_offers_to_build_one(engine: Engine) -> None:
    with socket.socket() as deaf, pytest.raises(ContainerError) as caught:
        deaf.bind(("127.0.0.1", 0))  # and nobody listens
        nowhere = f"127.0.0.1:{deaf.getsockname()[1]}"
        list(engine.images.ensure(f"{nowhere}/podbot/none:latest"))

    assert caught.value.kind is Kind.PULL_FAILED
    assert "podbot image build" in str(caught.value.remedy)


# The service


OWN = """
    import os, sys
    from podbot.engine import ConnectOptions, connect
    from podbot.engine.finding import candidates
    # Whatever engines this machine has: none of them is meant here.
    candidates.sockets = lambda _: iter(())
    environment = {k: v for k, v in os.environ.items() if k != "PODBOT_ENGINE_SOCKET"}
    engine = connect(options=ConnectOptions(environment=environment))
    engine.containers.list()
    print(engine.found_by, engine.endpoint.path, flush=True)
    sys.stdin.read()
"""


def own_service(service: Service) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWN)],
        env=dict(service.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found_by, _, path = process.stdout.readline().strip().rpartition(" ")
    assert found_by == "podbot's own Podman service"
    return process, path


def holders(path: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes().decode().replace("\0", " ")
            except OSError:
                continue
            if path in line:
                found.append(line)
    return found


@podman_only
def test_podbots_own_service_ends_with_podbot(service: Service) -> None:
    process, path = own_service(service)
    assert holders(path)

    process.communicate("", timeout=60)

    assert process.returncode == 0
    until(lambda: not holders(path), "the service lives on")
    assert not os.path.exists(os.path.dirname(path))


@podman_only
def test_podbots_own_service_ends_when_podbot_is_killed(service: Service) -> None:
    process, path = own_service(service)

    process.kill()
    process.communicate()

    until(lambda: not holders(path), "the service lives on")
