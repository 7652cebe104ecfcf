"""Attacks through processes: the guest's memory and descriptors, signals, the host's processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from inside import MACHINE, PRELUDE, PYTHON, inside, shell, until

from podbot.errors import SandboxError
from podbot.sandbox import Terminal
from podbot.sandbox.overlay.launcher import OverlaySandbox
from podbot.testing.base import eventually
from podbot.testing.evaluating import TEMPLATES, forks

COLUMN = ("x86_64", "aarch64").index(MACHINE) if MACHINE in ("x86_64", "aarch64") else 0


DESCRIPTORS = """
found = {}
for fd in range(1 << 16):
    try:
        os.fstat(fd)
    except OSError:
        continue
    found[fd] = os.readlink(f"/proc/self/fd/{fd}")
tell(found)
"""


def test_a_command_starts_with_three_descriptors_and_no_more(shared: OverlaySandbox) -> None:
    found = inside(shared, DESCRIPTORS)

    assert set(found) == {"0", "1", "2"}
    assert found["0"] == "/dev/null"
    assert found["1"].startswith("pipe:")
    assert found["2"].startswith("pipe:")


def test_what_is_spawned_onto_passed_pipes_has_three_descriptors_and_no_more(
    shared: OverlaySandbox,
) -> None:
    argv = [PYTHON, "-I", "-S", "-c", PRELUDE + DESCRIPTORS]
    with shared.spawn(["sleep", "100"]), shared.spawn(argv) as process:
        found = json.loads(process.stdout.read_all())

    assert set(found) == {"0", "1", "2"}


def test_a_command_at_a_terminal_has_three_descriptors_too(shared: OverlaySandbox) -> None:
    argv = ["sh", "-c", "for fd in /proc/$$/fd/*; do readlink $fd; done"]

    with shared.spawn(argv, terminal=Terminal(24, 80)) as process:
        lines = process.stdout.read_all().decode().split()

    # The shell keeps the terminal as 10 for itself.
    assert set(lines) <= {"/dev/pts/0", "/dev/tty"}


def test_the_kernel_sees_no_descriptor_but_its_line(shared: OverlaySandbox) -> None:
    code = """
import os
paths = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
[os.readlink(path) for path in paths if os.path.lexists(path)]
"""

    found = shared.python(code).value or ""

    assert "/dev/null" in found
    places = [part for part in found.split("'") if part.startswith("/")]
    assert set(places) == {"/dev/null"}, found


@pytest.mark.parametrize("name", ["root", "cwd", "exe", "fd/0", "fd/3", "ns/mnt"])
def test_nothing_of_the_guest_can_be_followed(shared: OverlaySandbox, name: str) -> None:
    code = f"""
path = "/proc/1/{name}"
tell([attempt(os.readlink, path), attempt(os.open, path, os.O_RDONLY), attempt(os.stat, path),
      attempt(os.listdir, path + "/")])
"""
    found = inside(shared, code)

    assert set(found) <= {"EACCES", "EPERM"}, found


def test_the_template_of_evaluations_cannot_be_reached(shared: OverlaySandbox) -> None:
    eventually(lambda: forks(shared))
    code = f"""{TEMPLATES}
import ctypes, errno, json
def tell(found): print(json.dumps(found))
libc = ctypes.CDLL(None, use_errno=True)
def attempt(work, *arguments):
    try:
        return "done: " + str(work(*arguments))
    except OSError as error:
        return errno.errorcode[error.errno]
found = []
for pid in pids:
    here = f"/proc/{{pid}}/"
    found += [attempt(os.open, here + name, os.O_RDONLY) for name in ("mem", "environ", "maps")]
    found += [attempt(os.open, here + "mem", os.O_RDWR), attempt(os.readlink, here + "fd/3")]
    for request in (16, 0x4206):
        denied = libc.ptrace(request, pid, None, None) and ctypes.get_errno() == 1
        found.append("EPERM" if denied else "traced")
tell([len(pids), *found])
"""
    number, *found = json.loads(shared.evaluate(code).stdout)

    assert number >= 1  # itself, and mostly the fork that waits
    assert set(found) <= {"EACCES", "EPERM", "EROFS"}, found


@pytest.mark.parametrize("name", ["mem", "environ", "maps", "auxv", "stack", "syscall", "io"])
def test_the_guests_memory_cannot_be_read(shared: OverlaySandbox, name: str) -> None:
    code = f"""
def read():
    with open("/proc/1/{name}", "rb") as file:
        file.read(1)
tell([attempt(read), attempt(os.open, "/proc/1/{name}", os.O_RDWR)])
"""
    found = inside(shared, code)

    assert set(found) <= {"EACCES", "EPERM", "EROFS", "ENOENT"}, found


def test_the_guest_cannot_be_traced_or_robbed(shared: OverlaySandbox) -> None:
    ptrace, readv, getfd = ((101, 310, 438), (117, 270, 438))[COLUMN]
    code = f"""
buffer = ctypes.create_string_buffer(8)
vector = struct.pack("PN", ctypes.addressof(buffer), 8)
guest = os.pidfd_open(1)
found = [call({ptrace}, request, 1, 0, 0) for request in (16, 0x4206)]
found += [call({readv}, 1, vector, 1, vector, 1, 0)]
found += [call({getfd}, guest, fd, 0) for fd in range(12)]
tell(found)
"""
    assert set(inside(shared, code)) == {"EPERM"}


def test_a_neighbour_cannot_be_attached_to(shared: OverlaySandbox) -> None:
    ptrace = (101, 117)[COLUMN]
    code = f"""
pid = os.fork()
if pid == 0:
    time.sleep(60)
found = [call({ptrace}, request, pid, 0, 0) for request in (16, 0x4206)]
os.kill(pid, 9)
tell(found)
"""
    assert set(inside(shared, code)) == {"EPERM"}


def test_a_child_that_asks_to_be_traced_does_not_confuse_the_guest(sandbox: OverlaySandbox) -> None:
    ptrace = (101, 117)[COLUMN]
    code = f"""
libc.syscall(ctypes.c_long({ptrace}), 0, 0, 0, 0)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    argv = [PYTHON, "-I", "-S", "-c", PRELUDE + code]
    sandbox.exec(argv, timeout=1)

    assert sandbox.exec(["echo", "still here"]).stdout == "still here\n"


@pytest.mark.parametrize("number", [s for s in signal.valid_signals() if s < 32])
def test_no_signal_from_inside_ends_the_guest(shared: OverlaySandbox, number: int) -> None:
    code = f"tell([attempt(os.kill, 1, {int(number)}) for _ in range(20)])"

    inside(shared, code)

    assert shared.exec(["echo", "alive"]).stdout == "alive\n"


def test_killing_everything_inside_leaves_a_sandbox_that_works(sandbox: OverlaySandbox) -> None:
    background = sandbox.spawn(["sleep", "600"])
    sandbox.exec(["sh", "-c", "sleep 600 & kill -9 -1"], timeout=60)

    assert background.wait(timeout=60) == 128 + signal.SIGKILL
    assert sandbox.exec(["echo", "alive"]).stdout == "alive\n"


def test_a_guest_whose_limits_were_tightened_from_inside_refuses_politely(
    sandbox: OverlaySandbox,
) -> None:
    inside(
        sandbox,
        """
import resource
tell(attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (4, 4)))
""",
    )

    for _ in range(3):
        try:
            sandbox.exec(["true"])
        except SandboxError as error:
            assert error.kind in ("out_of_descriptors", "guest_lost", "io"), error
    # Whatever became of it, closing works (the fixture does) and nothing hangs.


def test_processes_of_the_host_cannot_be_seen_or_signalled(sandbox: OverlaySandbox) -> None:
    with subprocess.Popen(["sleep", "600"]) as outside:
        try:
            code = """
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
lines = [open(f"/proc/{pid}/comm").read().strip() for pid in pids]
host = [int(argument) for argument in sys.argv[1:]]
kills = [attempt(os.kill, pid, 0) for pid in host]
opens = [attempt(os.pidfd_open, pid) for pid in host]
tell([lines, kills, opens, sorted(pids)])
"""
            host = [outside.pid, os.getpid(), os.getppid()]
            names, kills, opens, pids = inside(sandbox, code, *map(str, host))
        finally:
            outside.kill()

    assert "sleep" not in names
    assert len(pids) <= 3
    seen = [pid for pid in host if pid in pids]
    assert set(kills) <= {"ESRCH"} or seen
    assert set(opens) <= {"ESRCH", "EINVAL"} or seen


def test_the_hosts_system_v_and_posix_queues_do_not_exist_inside(shared: OverlaySandbox) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x5EC00000 + os.getpid() % 0x100000
    segment = libc.shmget(key, 4096, 0o1666)
    queue = libc.msgget(key, 0o1666)
    name = f"/podbot-test-{os.getpid()}".encode()
    try:
        rt = ctypes.CDLL("librt.so.1", use_errno=True)
    except OSError:
        rt = libc
    rt.mq_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    mailbox = rt.mq_open(name, os.O_CREAT | os.O_RDWR, 0o666, None)
    shared_memory = Path(f"/dev/shm/podbot-test-{os.getpid()}")
    try:
        shared_memory.write_text("secret")
        assert segment >= 0 and queue >= 0
        code = """
key, name, shm = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3]
try:
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
except OSError:
    rt = libc
def failed(result):
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "worked"
tell([failed(libc.shmget(key, 0, 0)), failed(libc.msgget(key, 0)),
      failed(rt.mq_open(name, os.O_RDWR)), attempt(os.stat, shm)])
"""
        found = inside(shared, code, str(key), name.decode(), str(shared_memory))
        assert set(found) == {"ENOENT"}
    finally:
        libc.shmctl(segment, 0, None)
        libc.msgctl(queue, 0, None)
        if mailbox >= 0:
            os.close(mailbox)
            rt.mq_unlink(name)
        shared_memory.unlink()


def test_the_hostname_of_the_host_cannot_be_changed(shared: OverlaySandbox) -> None:
    assert inside(shared, "tell(attempt(socket.sethostname, 'mine'))") == "EPERM"


def test_orphans_are_reaped(sandbox: OverlaySandbox) -> None:
    code = """
import subprocess
for _ in range(50):
    subprocess.run(["sh", "-c", "(sleep 0.05 &) &"], check=True)
def orphans():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if parent == "1" and name != str(os.getpid()):
            found.append(state)
    return found
deadline = time.monotonic() + 50
while orphans() and time.monotonic() < deadline:
    time.sleep(0.02)
tell(orphans())
"""
    # Asked in one command, so that no other request makes the guest look after them.
    assert inside(sandbox, code) == []


def test_what_a_timed_out_command_started_is_dead_though_it_hid(sandbox: OverlaySandbox) -> None:
    script = """
rm -f one two
setsid env -i /bin/sh -c 'touch one; exec sleep 1000' &
(setsid sh -c 'trap "" TERM HUP INT; (sleep 1001 &) ; touch two; sleep 1002' &)
until [ -e one ] && [ -e two ]; do sleep 0.02; done
touch hidden
sleep 1003
"""
    for seconds in (0.7, 3, 12, 60):  # a busy machine needs more until all are there
        result = sandbox.exec(["sh", "-c", script], timeout=seconds)
        if sandbox.exists("hidden"):
            break

    assert result.timed_out
    assert sandbox.exists("hidden")
    # One that was killed may need a moment to be gone.
    listing = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    assert until(lambda: "sleep 100" not in shell(sandbox, listing))
