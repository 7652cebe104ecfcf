"""Container sandboxes on real engines: what is inside, what ends them, and what is left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from services import Service

import podbot.sandbox
from podbot.engine import ContainerSpec, connect, labels
from podbot.engine.finding.leash import listens
from podbot.errors import GuestLostError, Kind, LaunchError, SandboxError
from podbot.sandbox import AsyncContainerSandbox, ContainerSandbox, Limits, Pool
from podbot.sandbox.container.sweeping import sweep
from podbot.sandbox.limits import MIB
from podbot.testing.base import eventually
from podbot.testing.lifetime import a_long_sleep, running

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.podman,
    pytest.mark.engines("rootful", "rootless", "docker"),
]


@pytest.fixture(autouse=True)
def nothing_left(service: Service) -> Iterator[None]:
    """After each test the engine has no more containers of podbot's than before."""
    before = set(service.containers(f"label={labels.OWNER}"))
    yield
    gc.collect()
    eventually(lambda: set(service.containers(f"label={labels.OWNER}")) <= before)


def opened(service: Service, **options: object) -> ContainerSandbox:
    made = podbot.sandbox.open("container", engine=service.url, image=service.image, **options)
    assert isinstance(made, ContainerSandbox)
    return made


def promises(sandbox: ContainerSandbox) -> dict[str, bool]:
    return {found.name: found.enforced for found in sandbox.guarantees}


# From inside

NETWORK = """
import errno, socket
def tried(name, work):
    try:
        work()
    except OSError as error:
        print(name, errno.errorcode.get(error.errno, type(error).__name__))
    else:
        print(name, "REACHED")
def udp(place):
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    line.settimeout(3)
    line.sendto(b"x", place)
    line.recv(1)
def icmp():
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    line.settimeout(3)
    line.sendto(bytes([8, 0, 0xf7, 0xff, 0, 0, 0, 0]), ("192.0.2.1", 0))
    line.recv(1)
tried("dns", lambda: socket.getaddrinfo("example.org", 80))
tried("tcp", lambda: socket.create_connection(("192.0.2.1", 80), 3))
tried("metadata", lambda: socket.create_connection(("169.254.169.254", 80), 3))
tried("udp", lambda: udp(("192.0.2.1", 53)))
tried("icmp", icmp)
tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
print("interfaces", *sorted(name for _, name in socket.if_nameindex()))
"""


def test_nothing_is_reachable_from_inside(service: Service) -> None:
    with opened(service) as sandbox:
        said = sandbox.exec(["python3", "-c", NETWORK], timeout=60).check().stdout
    words = dict(line.split(" ", 1) for line in said.splitlines())
    assert "REACHED" not in said
    assert words["tcp"] == words["metadata"] == words["udp"] == "ENETUNREACH"
    assert words["interfaces"] == "lo"


def test_inside_there_is_no_privilege_and_nothing_of_the_host(service: Service) -> None:
    secret = Path(os.path.expanduser("~/.podbot-e2e-secret"))
    secret.write_text("seen")
    code = (
        "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id -u; id -g;"
        f"cat {secret}; ls {service.socket} /run/podman /var/run/docker.sock;"
        "touch /usr/x /etc/x /x; mount -t tmpfs x /tmp && echo MOUNTED; echo >/run/podbot/x"
    )
    try:
        with opened(service) as sandbox:
            found = sandbox.exec(["sh", "-c", code])
            facts = dict(line.split(":\t") for line in found.stdout.splitlines() if ":\t" in line)
            owner = sandbox.exec(["stat", "-c", "%u:%g", "/workspace"]).stdout.strip()
            sandbox.write("mine", "x")
            large = sandbox.exec(["sh", "-c", "head -c 300000000 /dev/zero > /tmp/big"])
    finally:
        secret.unlink()
    assert {facts[name] for name in facts if name.startswith("Cap")} == {"0" * 16}
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert "seen" not in found.stdout
    assert owner == "65534:65534"
    assert found.stdout.count("65534") == 2
    assert found.stderr.count("Read-only file system") == 4
    assert found.stderr.count("No such file or directory") >= 3
    assert "MOUNTED" not in found.stdout
    assert "No space left" in large.stderr


def test_a_fork_bomb_is_contained(service: Service) -> None:
    with opened(service, limits=Limits(cpu=1, memory=256 * MIB, pids=60)) as sandbox:
        assert promises(sandbox)["limit.pids"]
        bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
        assert sandbox.exec(["python3", "-c", bomb], timeout=2).timed_out
        # No more can be started than the limit allows, and it is all gone with the command.
        eventually(lambda: sandbox.exec(["true"]).ok)


def test_a_memory_hog_is_contained(service: Service) -> None:
    limits = Limits(cpu=1, memory=100 * MIB)
    with opened(service, limits=limits) as sandbox:
        assert promises(sandbox)["limit.memory"]
        hog = sandbox.exec(["python3", "-c", "x = bytearray(400 << 20); print(len(x))"])
        assert not hog.ok and hog.stdout == ""
        assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"


def test_what_is_not_enforced_is_said(service: Service) -> None:
    with opened(service) as sandbox:
        found = promises(sandbox)
        notes = " ".join(sandbox.notes)
        held = found["limit.cpu"]
        assert ("cpu is not enforced" in notes) is not held
        if held:
            used = "import time; time.sleep(0); t=time.process_time();w=time.time()\n"
            assert sandbox.exec(["python3", "-c", used]).ok


def test_orphans_are_reaped_by_the_guest(service: Service) -> None:
    states = "cat /proc/[0-9]*/stat | cut -d' ' -f3 | grep -c Z; true"
    with opened(service) as sandbox:
        assert sandbox.exec(["cat", "/proc/1/comm"]).stdout == "python3\n"
        for _ in range(20):
            sandbox.exec(["sh", "-c", "(setsid true &) >/dev/null 2>&1"]).check()
        eventually(lambda: sandbox.exec(["sh", "-c", states]).stdout == "0\n")


# Ends


def test_closing_collecting_and_exiting_leave_nothing(service: Service) -> None:
    marks = [a_long_sleep() for _ in range(3)]
    first, second = opened(service), opened(service)
    first.spawn(["sleep", marks[0]])
    second.exec(["sh", "-c", f"setsid sleep {marks[1]} >/dev/null 2>&1 &"]).check()
    eventually(lambda: all(map(running, marks[:2])))
    first.close()
    assert not running(marks[0])
    assert first.container is None
    del second
    gc.collect()
    assert not running(marks[1])
    code = (
        "import sys, podbot.sandbox\n"
        "kept = podbot.sandbox.open('container', engine=sys.argv[1], image=sys.argv[2])\n"
        "kept.spawn(['sleep', sys.argv[3]])\n"
        "print(kept.container.id)"
    )
    command = [sys.executable, "-c", code, service.url, service.image, marks[2]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() not in service.containers()
    assert not running(marks[2])


def test_a_killed_owner_leaves_nothing(service: Service) -> None:
    mark = a_long_sleep()
    code = (
        "import sys, podbot.sandbox\n"
        "kept = podbot.sandbox.open('container', engine=sys.argv[1], image=sys.argv[2])\n"
        "kept.exec(['sh', '-c', f'setsid sleep {sys.argv[3]} >/dev/null 2>&1 &'])\n"
        "print(kept.container.id, flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, service.url, service.image, mark]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdin is not None
    container = owner.stdout.readline().strip()
    assert container in service.containers()
    assert running(mark)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    owner.stdin.close()
    eventually(lambda: not running(mark))
    # Its guest saw the line close, and the engine removes what has ended.
    eventually(lambda: container not in service.containers())
    with connect(service.url) as engine:
        assert container not in sweep(engine).containers


def test_a_killed_owner_on_a_stream_leaves_nothing(service: Service) -> None:
    code = (
        "import os, sys, podbot.sandbox; from podbot.engine import connect\n"
        "from podbot.sandbox.container import _engines\n"
        "engine = connect(sys.argv[1])\n"
        "_engines.remember_stream(engine, 'a test wants it so')\n"
        "kept = podbot.sandbox.open('container', engine=engine, image=sys.argv[2])\n"
        "assert kept.exec(['echo', 'x' * 100000]).stdout_bytes == b'x' * 100000 + b'\\n'\n"
        "print(kept.container.id, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, service.url, service.image]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    eventually(lambda: done.stdout.strip() not in service.containers())


def test_what_an_owner_left_half_made_is_swept(service: Service) -> None:
    code = (
        "import sys; from podbot.engine import connect, ContainerSpec\n"
        "engine = connect(sys.argv[1])\n"
        "print(engine.containers.create(ContainerSpec(sys.argv[2], ('sleep', '60'))).id)"
    )
    command = [sys.executable, "-c", code, service.url, service.image]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    orphan = done.stdout.strip()
    with connect(service.url) as engine, opened(service) as live:
        mine = engine.containers.create(ContainerSpec(service.image, ("sleep", "60"))).id
        found = sweep(engine, dry_run=True)
        assert len(found.containers) == 1
        assert orphan in service.containers()
        sweep(engine)
        assert orphan not in service.containers()
        assert mine in service.containers()
        assert live.exec(["true"]).ok
        engine.containers.remove(mine)


def test_a_removed_container_is_said_once_and_its_files_stay(service: Service) -> None:
    with opened(service) as sandbox:
        sandbox.write("kept", "x")
        assert sandbox.container is not None
        container = sandbox.container.id
        # It removes itself too when it ends: whichever comes second says that it is not there.
        service.cli("rm", "--force", container, check=False)
        eventually(lambda: container not in service.containers())
        with pytest.raises(GuestLostError) as caught:
            sandbox.exec(["true"])
        assert caught.value.kind is Kind.GUEST_LOST
        assert sandbox.read("kept") == b"x"


def test_two_that_want_one_name_do_not_harm_each_other(service: Service) -> None:
    name = f"podbot-e2e-{service.run}"
    outcomes: list[ContainerSandbox | LaunchError] = []

    def claim() -> None:
        try:
            outcomes.append(opened(service, name=name))
        except LaunchError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [found for found in outcomes if isinstance(found, ContainerSandbox)]
    try:
        (lost,) = [found for found in outcomes if isinstance(found, LaunchError)]
        assert lost.kind is Kind.NAME_IN_USE
        assert lost.remedy
        assert won[0].exec(["true"]).ok
    finally:
        for sandbox in won:
            sandbox.close()


# Trouble


def test_a_missing_image_says_how_to_get_one(service: Service) -> None:
    for image in ("localhost/podbot-no-such-image", "localhost:1/podbot-no-such-image"):
        with pytest.raises(LaunchError) as caught:
            podbot.sandbox.open("container", engine=service.url, image=image)
        assert caught.value.kind is Kind.IMAGE_NOT_FOUND
        assert "podbot image build" in (caught.value.remedy or "")


def test_a_full_disk_stops_an_upload_and_nothing_else(service: Service, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(300 * MIB)
    with opened(service) as sandbox:
        sandbox.write("/tmp/kept", "x")
        with pytest.raises(SandboxError) as caught:
            sandbox.upload(large, "/tmp/large")
        assert caught.value.kind in (Kind.DISK_FULL, Kind.LIMIT)
        assert not sandbox.exists("/tmp/large")
        assert sandbox.read("/tmp/kept") == b"x"


def test_changes_are_reviewed_applied_and_undone(service: Service, tmp_path: Path) -> None:
    from podbot.changes import capture
    from podbot.changes.applying import apply, undo

    (tmp_path / "a").write_text("one\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("x\n")
    with opened(service, target=tmp_path) as sandbox:
        sandbox.exec(["sh", "-c", "echo two >> a; rm -r d; mkdir d; echo y > d/y"]).check()
        assert sandbox.exec(["id", "-u"]).stdout == "65534\n"
    assert sandbox.layer is not None
    assert (tmp_path / "a").read_text() == "one\n"
    changes = capture.capture(sandbox.layer)
    kinds = {change.path: change.kind.value for change in changes.changes}
    kinds.pop("d", None)  # a copy does not tell a folder that was made anew
    assert kinds == {"a": "modified", "d/x": "deleted", "d/y": "added"}
    applied = apply.apply(changes)
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    assert (tmp_path / "d" / "y").stat().st_uid == os.geteuid()
    undo.undo(applied.id)
    assert (tmp_path / "a").read_text() == "one\n"
    assert (tmp_path / "d" / "x").exists()
    sandbox.layer.discard()
    assert not sandbox.layer.path.exists()


@pytest.mark.engines("rootful")
def test_root_works_on_a_users_folder_as_that_user(service: Service) -> None:
    import tempfile

    from podbot.changes import capture
    from podbot.sandbox import layers

    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "d").mkdir()
    (folder / "d" / "x").touch()
    for path in (folder, folder / "d", folder / "d" / "x"):
        os.chown(path, 1234, 1234)
    with opened(service, target=folder) as sandbox:
        assert sandbox.exec(["id", "-u"]).stdout == "1234\n"
        sandbox.exec(["sh", "-c", "rm -r d; mkdir d; touch d/y"]).check()
    assert sandbox.layer is not None and sandbox.layer.method == "overlay"
    found = {change.path: change.kind.value for change in capture.capture(sandbox.layer).changes}
    assert found == {"d": "replaced", "d/x": "deleted", "d/y": "added"}
    sandbox.layer.discard()
    layers.remove(folder)


@pytest.mark.engines("rootful")
def test_root_works_on_roots_folder_as_nobody_without_a_copy(service: Service) -> None:
    import tempfile

    from podbot.changes import capture
    from podbot.sandbox import layers
    from podbot.sandbox.container import _idmapped

    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "d").mkdir()
    (folder / "d" / "x").write_text("x\n")
    (folder / "secret").touch(mode=0o600)
    with opened(service, target=folder) as sandbox:
        why = [note for note in sandbox.notes if "cannot be mapped" in note]
        if why:
            pytest.skip(why[0])
        said = sandbox.exec(["stat", "-c", "%U:%G", "d/x", "secret", "."]).stdout
        assert said == "nobody:nogroup\n" * 3
        sandbox.exec(["sh", "-c", "echo y >> d/x; cat secret; touch new; git init -q ."]).check()
        assert str(layers.root()) not in Path("/proc/self/mountinfo").read_text()
        assert not sandbox.exists(_idmapped.UNMOUNTED)
    assert sandbox.layer is not None and sandbox.layer.method == "overlay"
    changes = {each.path: each for each in capture.capture(sandbox.layer).changes}
    assert changes["d/x"].kind.value == "modified" and changes["new"].kind.value == "added"
    assert {each.new.uid for each in changes.values() if each.new is not None} == {0}
    assert (folder / "d" / "x").read_text() == "x\n"
    sandbox.layer.discard()
    layers.remove(folder)


# Other users

SHOWS = "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status"


def test_no_other_user_runs_a_command_and_the_way_that_is_told_works(service: Service) -> None:
    with opened(service) as sandbox:
        own = sandbox.exec(["id", "-u"]).stdout
        assert sandbox.exec(["id", "-u"], user=own.strip()).stdout == own
        other = "1" if own == "0\n" else "root"
        with pytest.raises(SandboxError, match="may not become another") as caught:
            sandbox.exec(["id"], user=other)
        assert caught.value.kind is Kind.UNSUPPORTED
        assert "podbot exec NAME --user root -- COMMAND" in (caught.value.remedy or "")
        assert sandbox.container is not None
        words = [sandbox.container.name, "--user", "root", "--json", "--", "sh", "-c", SHOWS]
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from podbot.cli import main; sys.exit(main())",
             "exec", "--engine", service.url, *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        (told,) = done.stderr.splitlines()
        assert json.loads(told)["outcome"] == "ended", told
        user, *facts = done.stdout.splitlines()
        known = {name: int(value, 16) for name, value in (each.split(":") for each in facts)}
        assert (user, json.loads(told)["exit_status"]) == ("0", 0)
        assert known == {"CapEff": 0, "CapBnd": 0, "NoNewPrivs": 1, "Seccomp": 2}


# Coming and going


def test_it_starts_late_is_stopped_when_idle_and_comes_back(service: Service) -> None:
    with opened(service, lazy=True) as sandbox:
        assert sandbox.container is None
        sandbox.write("kept", "x")
        assert sandbox.container is not None
    with opened(service, idle=0.5) as sandbox:
        sandbox.write("kept", "x")
        eventually(lambda: sandbox.container is None)
        assert sandbox.read("kept") == b"x"


def test_an_async_one_tells_that_it_was_stopped(service: Service) -> None:
    async def work() -> None:
        made = podbot.sandbox.open_async(
            "container", engine=service.url, image=service.image, idle=0.5
        )
        assert isinstance(made, AsyncContainerSandbox)
        async with made as sandbox:
            stopped = asyncio.Event()
            sandbox.on_stop = stopped.set
            await sandbox.write("kept", "x")
            container = sandbox.container
            await stopped.wait()
            assert container is not None and container.id not in service.containers()
            assert await sandbox.read("kept") == b"x"

    asyncio.run(work())


@pytest.mark.engines("rootful", "docker")
def test_what_is_frozen_does_not_move_until_the_next_call(service: Service) -> None:
    with opened(service) as sandbox:
        assert sandbox.container is not None
        beat = "while :; do date +%s%N > beat.new; mv beat.new beat; sleep 0.02; done"
        sandbox.spawn(["sh", "-c", beat])
        eventually(lambda: sandbox.exists("beat"))
        sandbox.pause()
        state = service.cli("inspect", "--format", "{{.State.Status}}", sandbox.container.id)
        assert state.strip() == "paused"
        assert sandbox.exec(["true"]).ok
        before = sandbox.read("beat")
        eventually(lambda: sandbox.read("beat") != before)


def test_a_pool_hands_out_containers_that_run(service: Service, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    options = {"engine": service.url, "image": service.image}
    with Pool("container", size=2, **options) as pool:
        assert pool.wait_full(300)
        with pool.claim(environment={"WHO": "me"}, target=tmp_path) as sandbox:
            assert sandbox.exec(["sh", "-c", "cat a; echo $WHO"]).stdout == "one\nme\n"
            sandbox.write("b", "x")
        assert sandbox.layer is not None
        assert not (tmp_path / "b").exists()
        sandbox.layer.discard()


@pytest.mark.engines("rootful")
def test_a_runtime_can_be_chosen_and_is_told(
    service: Service, all_services: SimpleNamespace
) -> None:
    all_services.get("runsc")  # or it skips: not every machine can have it
    with opened(service, runtime="runsc") as sandbox:
        assert promises(sandbox)["kernel"]
        assert sandbox.exec(["echo", "from gVisor"]).stdout == "from gVisor\n"
    with opened(service, runtime="runc") as sandbox:
        assert not promises(sandbox)["kernel"]
    with pytest.raises(LaunchError) as caught:
        opened(service, runtime="kata")
    assert caught.value.remedy


@pytest.mark.engines("rootful", "rootless")
def test_an_engine_that_is_killed_takes_nothing_with_it(service: Service, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    command = ["podman", "system", "service", "--time=0", f"unix://{socket}"]
    other = subprocess.Popen(command, env=dict(service.environment), stderr=subprocess.DEVNULL)
    eventually(lambda: listens(str(socket)))
    options = {"engine": f"unix://{socket}", "image": service.image}
    with podbot.sandbox.open("container", **options) as sandbox:
        assert isinstance(sandbox, ContainerSandbox) and sandbox.container is not None
        container = sandbox.container.id
        begun = sandbox.spawn(["sh", "-c", "echo begun; read line; echo $line"])
        assert begun.stdout.read() == b"begun\n"
        other.kill()
        other.wait()
        begun.write("and done\n")
        assert begun.stdout.read_all() == b"and done\n"
        sandbox.write("file", "x")
        assert sandbox.exec(["cat", "file"]).stdout == "x"
    eventually(lambda: container not in service.containers())
