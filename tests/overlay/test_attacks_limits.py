"""Attacks by using too much: processes, memory, disk, output, descriptors."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest
from inside import PRELUDE, PYTHON, inside, shell, until

from podbot.errors import SandboxError
from podbot.sandbox import Limits
from podbot.sandbox.layers import disk_watcher
from podbot.sandbox.overlay import _memory_use, cgroups
from podbot.sandbox.overlay.launcher import OverlaySandbox

MIB = 1024 * 1024
HANGS = 60
"""Seconds. Whatever takes longer waits for something that it should have killed."""


def promised(sandbox: OverlaySandbox, name: str) -> None:
    """Skip unless this host can keep the promise, as the sandbox itself says."""
    found = next(g for g in sandbox.guarantees if g.name == name)
    if not found.enforced:
        pytest.skip(f"{name} is not enforced here: {found.by}")


FORK_BOMB = """
made, refused = 0, 0
for _ in range(2000):
    try:
        pid = os.fork()
    except OSError as error:
        refused = error.errno
        break
    if pid == 0:
        time.sleep(100)
        os._exit(0)
    made += 1
tell([made, refused])
"""


@pytest.mark.parametrize("limit", [20, 400], ids=["small", "large"])
def test_a_fork_bomb_is_contained(target: Path, limit: int) -> None:
    with OverlaySandbox(target, limits=Limits(pids=limit), discard=True) as sandbox:
        promised(sandbox, "limit.pids")
        made, refused = inside(sandbox, FORK_BOMB)
        assert limit * 0.5 < made < limit
        assert refused == errno.EAGAIN
        with pytest.raises(SandboxError) as caught:
            for _ in range(limit):
                sandbox.spawn(["sleep", "100"])
        assert caught.value.kind == "out_of_processes"
        started = time.monotonic()
    assert time.monotonic() - started < HANGS

    with OverlaySandbox(target, limits=Limits(pids=limit), discard=True) as sandbox:
        assert sandbox.exec(["true"]).ok


def test_a_fork_bomb_that_never_stops_dies_with_the_sandbox(target: Path) -> None:
    with OverlaySandbox(target, limits=Limits(pids=50), discard=True) as sandbox:
        promised(sandbox, "limit.pids")
        sandbox.spawn(["sh", "-c", "bomb() { bomb | bomb & }; bomb; while :; do bomb; done"])
        time.sleep(0.5)
        started = time.monotonic()
    assert time.monotonic() - started < HANGS


def test_threads_count_as_processes(target: Path) -> None:
    code = """
import threading
made = 0
try:
    for _ in range(2000):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        made += 1
except RuntimeError:
    pass
tell(made)
sys.stdout.flush()
os._exit(0)
"""
    with OverlaySandbox(target, limits=Limits(pids=30), discard=True) as sandbox:
        promised(sandbox, "limit.pids")
        assert inside(sandbox, code) < 30


def test_a_memory_hog_is_stopped_and_the_sandbox_goes_on(target: Path) -> None:
    code = """
pid = os.fork()
if pid == 0:
    hog = []
    try:
        for _ in range(64):
            hog.append(bytearray(os.urandom(1 << 20)) * 16)
    except MemoryError:
        os._exit(7)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
tell(os.waitstatus_to_exitcode(status))
"""
    with OverlaySandbox(target, limits=Limits(memory=128 * MIB), discard=True) as sandbox:
        promised(sandbox, "limit.memory")
        assert inside(sandbox, code) in (7, -9)
        assert sandbox.exec(["echo", "alive"]).stdout == "alive\n"


SHARED = """
import mmap
block = b"x" * (1 << 20)
area = mmap.mmap(-1, 400 << 20)
for at in range(0, 400 << 20, 1 << 20):
    area[at : at + (1 << 20)] = block
"""
MEMFD = """
fd = os.memfd_create("hidden")
for _ in range(400):
    os.write(fd, b"x" * (1 << 20))
"""
TMPFS = """
file = open("/tmp/large", "wb", buffering=0)
os.unlink("/tmp/large")
for _ in range(400):
    file.write(b"x" * (1 << 20))
"""
EMPTY = """
for number in range(200_000):
    os.mknod(f"/tmp/{number}")
"""
MANY = """
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        hog = bytearray(os.urandom(1 << 20)) * 50
        while True:
            time.sleep(1)
"""


@pytest.mark.parametrize(
    "code",
    [SHARED, MEMFD, TMPFS, EMPTY, MANY],
    ids=["map", "memfd", "tmpfs", "empty files", "many"],
)
def test_memory_that_no_limit_on_a_process_counts_ends_the_sandbox(
    target: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(cgroups, "create", lambda *_: cgroups.NO_GROUP)
    code = PRELUDE + code + "\ntime.sleep(1000)"
    with OverlaySandbox(target, limits=Limits(memory=128 * MIB), discard=True) as sandbox:
        assert not next(g for g in sandbox.guarantees if g.name == "limit.memory").enforced
        sandbox.write("small", b"kept")
        with pytest.raises(SandboxError) as caught:
            sandbox.exec([PYTHON, "-I", "-S", "-c", code], timeout=120)
        assert caught.value.kind == "limit"
        assert caught.value.remedy


def test_less_memory_than_the_limit_is_left_alone(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "create", lambda *_: cgroups.NO_GROUP)
    looks: list[int] = []
    usage = _memory_use.usage

    def noted(guest: int, enough: int) -> int:
        looks.append(usage(guest, enough))
        return looks[-1]

    monkeypatch.setattr(_memory_use, "usage", noted)
    code = MEMFD.replace("400", "40") + "\nimport mmap; area = mmap.mmap(fd, 40 << 20); area.read()"
    with OverlaySandbox(target, limits=Limits(memory=128 * MIB), discard=True) as sandbox:
        process = sandbox.spawn([PYTHON, "-I", "-S", "-c", PRELUDE + code + "\ntime.sleep(1000)"])
        assert until(lambda: bool(looks) and looks[-1] > 40 * MIB)
        before = len(looks)
        assert until(lambda: len(looks) > before + 1)
        assert looks[-1] < 100 * MIB  # mapped and open, it counts once
        assert sandbox.exec(["echo", "alive"]).stdout == "alive\n"
        process.close()


def test_private_folders_are_bounded_in_files_too(shared: OverlaySandbox) -> None:
    code = "tell([os.statvfs(path).f_files for path in ('/tmp', '/var/tmp', '/run', '/dev/shm')])"

    assert inside(shared, code) == [1 << 20] * 4


def test_a_million_empty_files_are_too_much_on_disk(target: Path) -> None:
    code = """
for number in range(1_000_000):
    open(f"empty{number}", "w").close()
"""
    with OverlaySandbox(target, limits=Limits(disk=4 * MIB), discard=True) as sandbox:
        with pytest.raises(SandboxError) as caught:
            inside(sandbox, code)
        assert caught.value.kind == "disk_limit"


def test_no_file_grows_beyond_its_limit(target: Path) -> None:
    with OverlaySandbox(target, limits=Limits(file_size=MIB), discard=True) as sandbox:
        shell(sandbox, "head -c 5000000 /dev/zero > large; head -c 5000000 /dev/zero > /tmp/large")
        assert sandbox.stat("large").size <= MIB
        assert sandbox.stat("/tmp/large").size <= MIB
        with pytest.raises(SandboxError) as caught:
            sandbox.write("larger", bytes(2 * MIB))
        assert caught.value.kind == "limit"
        assert sandbox.exec(["true"]).ok


def test_a_limit_cannot_be_raised_from_inside(target: Path) -> None:
    code = """
import resource
names = ("RLIMIT_FSIZE", "RLIMIT_NPROC" if os.getuid() else "RLIMIT_FSIZE")
found = []
for name in names:
    limit = getattr(resource, name)
    hard = resource.getrlimit(limit)[1]
    try:
        resource.setrlimit(limit, (hard + 1, hard + 1))
        found.append("worked")
    except (ValueError, OSError):
        found.append("refused")
tell(found)
"""
    with OverlaySandbox(target, limits=Limits(file_size=MIB), discard=True) as sandbox:
        assert inside(sandbox, code) == ["refused", "refused"]


def test_too_much_on_disk_ends_the_sandbox_and_keeps_its_layer(target: Path) -> None:
    with OverlaySandbox(target, limits=Limits(disk=4 * MIB)) as sandbox:
        sandbox.write("small", b"kept")
        with pytest.raises(SandboxError) as caught:
            shell(sandbox, "while :; do head -c 1000000 /dev/zero >> large; sleep 0.1; done")
        assert caught.value.kind == "disk_limit"
        assert caught.value.remedy
        with pytest.raises(SandboxError) as again:
            sandbox.exec(["true"])
        assert again.value.kind == "disk_limit"

    assert (sandbox.layer.upper(0) / "small").read_bytes() == b"kept"
    sandbox.layer.discard()


HIDE_IN_MODES = """
os.chdir(sys.argv[1])
os.makedirs("a/b/c")
file = open("a/b/c/file", "wb")
os.chmod("a/b", 0o300)
os.chmod("a", 0o444)
while True:
    file.write(os.urandom(500_000))
    file.flush()
    time.sleep(0.05)
"""
HIDE_IN_DEPTH = """
os.chdir(sys.argv[1])
for _ in range(30):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
while True:
    with open("file", "ab") as file:
        file.write(os.urandom(500_000))
    time.sleep(0.05)
"""


@pytest.mark.parametrize("code", [HIDE_IN_MODES, HIDE_IN_DEPTH], ids=["modes", "depth"])
def test_nothing_can_be_hidden_from_the_disk_limit(target: Path, code: str) -> None:
    with OverlaySandbox(target, limits=Limits(disk=4 * MIB), discard=True) as sandbox:
        with pytest.raises(SandboxError) as caught:
            inside(sandbox, code, str(target))
        assert caught.value.kind == "disk_limit"


def test_looking_at_the_disk_leaves_modes_as_they_are(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    usage = disk_watcher.usage

    def noted(path: Path, enough: int) -> int:
        found = usage(path, enough)
        looks.append(found)
        return found

    monkeypatch.setattr(disk_watcher, "usage", noted)
    with OverlaySandbox(target, limits=Limits(disk=4 * MIB), discard=True) as sandbox:
        shell(sandbox, "mkdir -p odd/in; touch odd/in/x; chmod 200 odd/in; chmod 444 odd")
        before = len(looks)
        assert until(lambda: len(looks) > before + 1)
        # The next look may have begun, and lifts them for a moment.
        assert until(lambda: (sandbox.layer.upper(0) / "odd").stat().st_mode & 0o7777 == 0o444)
        assert until(lambda: sandbox.stat("odd").mode & 0o7777 == 0o444)


def test_a_flood_of_output_is_cut(target: Path) -> None:
    script = "head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2"
    with OverlaySandbox(target, limits=Limits(output=1000), discard=True) as sandbox:
        result = sandbox.exec(["sh", "-c", script])

    assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (1000, 1000)
    assert result.stdout_truncated and result.stderr_truncated


def test_a_flood_nobody_reads_holds_up_only_its_writer(target: Path) -> None:
    with OverlaySandbox(target, limits=Limits(buffer=100_000), discard=True) as sandbox:
        flood = sandbox.spawn(["sh", "-c", "while :; do echo flood; done"])
        for _ in range(5):
            assert sandbox.exec(["echo", "quick"]).stdout == "quick\n"
        flood.close()


def test_a_guest_without_descriptors_left_recovers(target: Path) -> None:
    code = "import resource; tell(attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (99, 99)))"
    with OverlaySandbox(target, discard=True) as sandbox:
        inside(sandbox, code)
        processes = []
        try:
            while len(processes) < 200:
                processes.append(sandbox.spawn(["sleep", "100"]))
            pytest.fail("the limit was never felt")
        except SandboxError as error:
            assert error.kind == "out_of_descriptors", error
        for process in processes:
            process.close()
        assert sandbox.exec(["echo", "again"]).stdout == "again\n"


DEEP_TREE = """
os.chdir(sys.argv[1])
for _ in range(1500):
    os.mkdir("e" * 200)
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("f" * 255, "w").close()
tell("done")
"""


def test_a_deep_tree_and_a_long_name_can_be_removed_by_the_verb(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        inside(sandbox, DEEP_TREE, str(target))
        sandbox.remove("d" * 200, recursive=True)
        assert not sandbox.exists("d" * 200)


def test_a_deep_tree_does_not_confuse_those_who_walk(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        inside(sandbox, DEEP_TREE, str(target))
        for walk in (
            lambda: sandbox.list(recursive=True),
            lambda: sandbox.glob("**/f*"),
            lambda: sandbox.grep("x"),
        ):
            with contextlib.suppress(SandboxError):  # an error is fine, a lost guest is not
                walk()
        assert sandbox.exec(["echo", "alive"]).stdout == "alive\n"


def test_removing_a_deep_layer_does_not_hurt_other_sandboxes(target: Path, folder: Path) -> None:
    with OverlaySandbox(folder, discard=True) as other:
        with OverlaySandbox(target, discard=True) as sandbox:
            inside(sandbox, DEEP_TREE, str(target))
        assert other.exec(["echo", "alive"]).stdout == "alive\n"
    assert until(lambda: not list(sandbox.layer.path.parent.glob(f"*{sandbox.layer.id}*")))


def test_a_command_that_ignores_every_signal_is_killed_in_time(target: Path) -> None:
    code = """
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(1)
"""
    with OverlaySandbox(target, discard=True) as sandbox:
        result = sandbox.exec([PYTHON, "-I", "-S", "-c", PRELUDE + code], timeout=0.5)
        assert result.timed_out
        assert sandbox.exec(["true"]).ok


def test_a_sandbox_cannot_slow_its_own_end(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        for _ in range(20):
            sandbox.spawn(["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done"])
        started = time.monotonic()
    assert time.monotonic() - started < HANGS
    assert not os.path.exists(sandbox.layer.path)
