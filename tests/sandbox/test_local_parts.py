"""What the local backend does when things go wrong around it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import podbot.sandbox
from podbot.errors import GuestLostError, Kind, LaunchError, SandboxError
from podbot.sandbox import Sandbox, _local_guests, _pipes, interpreter, local
from podbot.testing.base import eventually


def test_a_guest_that_cannot_start_is_a_launch_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(interpreter, "command", lambda *_: ["/nonexistent/python"])
    monkeypatch.setattr(_local_guests, "_forker", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(LaunchError) as caught:
        podbot.sandbox.open("local")
    assert caught.value.kind is Kind.LAUNCH_FAILED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: None, Kind.TARGET_MISSING),
        (lambda path: path.write_text(""), Kind.TARGET_NOT_DIRECTORY),
        (lambda path: path.symlink_to(path), Kind.TARGET_REFUSED),
    ],
)
def test_a_target_that_is_no_folder_is_named(tmp_path: Path, make: object, kind: Kind) -> None:
    assert callable(make)
    make(tmp_path / "target")
    with pytest.raises(LaunchError) as caught:
        podbot.sandbox.open("local", target=tmp_path / "target")
    assert caught.value.kind is kind
    assert "target" in str(caught.value)


def guest_of(sandbox: Sandbox) -> int:
    """The process that starts its commands."""
    return int(sandbox.exec(["sh", "-c", "echo $PPID"]).stdout)


def parent_of(pid: int) -> int:
    """Whose child a process is."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def runs(pid: int) -> bool:
    """Whether a process lives; one that is dead but not buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_guest_that_is_stuck_is_killed_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "END_SECONDS", 0.2)
    sandbox = podbot.sandbox.open("local")
    guest = guest_of(sandbox)
    pid = int(sandbox.exec(["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]).stdout)
    os.kill(guest, signal.SIGSTOP)
    sandbox.close()
    assert not runs(pid)


def test_a_guest_that_was_killed_is_an_error_and_its_children_go() -> None:
    sandbox = podbot.sandbox.open("local")
    guest = guest_of(sandbox)
    pid = int(sandbox.exec(["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]).stdout)
    os.kill(guest, signal.SIGKILL)
    with pytest.raises(GuestLostError):
        sandbox.exec(["true"])
    sandbox.close()
    assert not runs(pid)


def test_guests_are_forked_from_one_process_and_one_that_was_killed_is_replaced() -> None:
    with podbot.sandbox.open("local") as one, podbot.sandbox.open("local") as two:
        forker = parent_of(guest_of(one))
        assert parent_of(guest_of(two)) == forker and parent_of(forker) == os.getpid()
        os.kill(forker, signal.SIGKILL)
        with podbot.sandbox.open("local") as three:
            assert parent_of(guest_of(three)) != forker
        assert one.exec(["true"]).ok and two.exec(["true"]).ok  # they do not depend on it


def test_ctrl_c_while_one_is_opened_mixes_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "END_SECONDS", 0.2)
    podbot.sandbox.open("local").close()  # the forker runs
    real = socket.send_fds

    def send_and_interrupt(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]  # passed on
        monkeypatch.setattr(socket, "send_fds", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(socket, "send_fds", send_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        podbot.sandbox.open("local")
    with podbot.sandbox.open("local") as one:
        two = podbot.sandbox.open("local")
        stuck = guest_of(two)
        os.kill(stuck, signal.SIGSTOP)
        two.close()
        assert not runs(stuck)
        assert one.exec(["true"]).ok


def test_ctrl_c_while_one_is_opened_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(_line: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_local_guests, "start", interrupt)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        podbot.sandbox.open("local")
    assert list(tmp_path.iterdir()) == []


def test_a_forker_that_was_stopped_is_replaced_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with podbot.sandbox.open("local") as one:
        monkeypatch.setattr(_local_guests, "START_SECONDS", 3600.0)
        forker = parent_of(guest_of(one))
        os.kill(forker, signal.SIGSTOP)
        with podbot.sandbox.open("local") as two, podbot.sandbox.open("local") as three:
            assert parent_of(guest_of(three)) != forker
            assert one.exec(["true"]).ok and two.exec(["true"]).ok
        assert not runs(forker)


def test_a_forker_that_may_not_be_killed_any_more_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not after setuid")

    with podbot.sandbox.open("local") as one:
        forker = parent_of(guest_of(one))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 10, hard))
        try:
            with monkeypatch.context() as patched:
                patched.setattr(signal, "pidfd_send_signal", refuse)
                with podbot.sandbox.open("local") as two:
                    assert parent_of(guest_of(two)) != forker
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: not runs(forker))  # by itself


def test_a_guest_has_nothing_open_but_its_own(tmp_path: Path) -> None:
    with (
        open(tmp_path / "before", "w") as file,
        podbot.sandbox.open("local") as first,
        podbot.sandbox.open("local") as second,
    ):
        os.set_inheritable(file.fileno(), True)
        with podbot.sandbox.open("local") as sandbox:
            for each in (first, second, sandbox):
                guest = guest_of(each)
                open_files = [os.readlink(path) for path in Path(f"/proc/{guest}/fd").iterdir()]
                sockets = [name for name in open_files if name.startswith("socket:")]
                assert len(sockets) == 2  # its line, and a copy to take descriptors from
                assert str(tmp_path / "before") not in open_files
                assert os.getsid(guest) == guest


def test_a_guest_has_the_limits_of_its_host_now() -> None:
    def files(sandbox: Sandbox) -> str:
        return sandbox.exec(["sh", "-c", "ulimit -n"]).stdout.strip()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with podbot.sandbox.open("local") as sandbox:
        assert files(sandbox) == str(soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 10, hard))
    try:
        with podbot.sandbox.open("local") as sandbox:
            assert files(sandbox) == str(soft - 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


THREADS = """
import ctypes, os, threading
import podbot.sandbox
def seen():
    with podbot.sandbox.open("local") as sandbox:
        command = "cat /proc/$PPID/status /proc/$PPID/oom_score_adj"
        lines = sandbox.exec(["sh", "-c", command]).stdout.splitlines()
        forker = int(next(line for line in lines if line.startswith("PPid"))[5:])
        guest = int(next(line for line in lines if line.startswith("Pid"))[4:])
        no_new = int(next(line for line in lines if line.startswith("NoNewPrivs"))[11:])
        return guest, forker, no_new, os.sched_getscheduler(guest), lines
def in_a_thread(change):
    found = []
    def run():
        change()
        found.extend([seen(), seen()])
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found
def bound():
    assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0
def batch():
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
def spawned_by_us(each):
    return each[1] == os.getpid()
plain = seen()
assert not spawned_by_us(plain)
was_bound = plain[2]
# A thread that may do less than the others: neither a fork of theirs, nor they of one of its.
found = in_a_thread(bound)
assert [each[2] for each in found] == [1, 1], found
assert seen()[2] == was_bound
found = in_a_thread(lambda: None)
assert [each[2] for each in found] == [was_bound] * 2, found
found = in_a_thread(batch)
assert [each[3] for each in found] == [os.SCHED_BATCH] * 2, found
assert seen()[3] == os.sched_getscheduler(0)
with open("/proc/self/oom_score_adj", "r+") as file:
    more = str(min(1000, int(file.read()) + 7))
    file.seek(0)
    file.write(more)
assert more in seen()[4]
print("done")
"""


def test_a_guest_is_as_a_child_of_the_thread_that_opens_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_where_what_children_inherit_is_in_doubt_an_interpreter_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_local_guests, "reaches", lambda _pid: False)
    monkeypatch.setattr(local, "END_SECONDS", 0.2)
    with podbot.sandbox.open("local") as one:
        assert parent_of(guest_of(one)) == os.getpid()
        two = podbot.sandbox.open("local")
        guest = guest_of(two)
        os.kill(guest, signal.SIGSTOP)
        two.close()
        assert not runs(guest)
        assert one.exec(["true"]).ok


def test_without_process_descriptors_an_interpreter_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "an old kernel")

    monkeypatch.setattr(os, "pidfd_open", missing)
    with podbot.sandbox.open("local") as sandbox:
        assert parent_of(guest_of(sandbox)) == os.getpid()


HOST = """
import os, sys, time
import podbot.sandbox
sandbox = podbot.sandbox.open("local")
def family():
    script = "setsid sleep 600 >/dev/null 2>&1 & echo $PPID $!"
    guest, sleeping = sandbox.exec(["sh", "-c", script]).stdout.split()
    forker = open(f"/proc/{guest}/stat").read().rsplit(")", 1)[1].split()[1]
    return [forker, guest, sleeping]
print(*family(), flush=True)
child = os.fork()
if child == 0:
    sandbox = podbot.sandbox.open("local")
    print(*family(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


def test_nothing_is_left_of_a_host_that_was_killed_nor_of_its_fork() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as host:
        assert host.stdout is not None
        families = [[int(word) for word in host.stdout.readline().split()] for _ in range(2)]
        one, two = families
        assert one[0] != two[0]  # a fork has its own
        forked = parent_of(two[0])
        host.kill()
        eventually(lambda: not any(map(runs, one)))
        assert all(map(runs, two))
        os.kill(forked, signal.SIGKILL)
        eventually(lambda: not any(map(runs, two)))


def test_no_pipe_left_is_named_and_leaks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = os.pipe2, []

    def scarce(flags: int) -> tuple[int, int]:
        if made:
            raise OSError(errno.EMFILE, "too many")
        made.append(real(flags))
        return made[0]

    monkeypatch.setattr(os, "pipe2", scarce)
    with pytest.raises(SandboxError) as caught:
        _pipes.OutputPipes(1 << 20)
    assert caught.value.kind is Kind.OUT_OF_DESCRIPTORS
    for fd in made[0]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


IN_A_PROCESS_OF_ITS_OWN = """
import os, sys
from podbot.sandbox.guest.file_requests import _moved_by_copy
from podbot.sandbox.guest.requests import Guest
inside = Guest()
inside.rehearse()
work = sys.argv[1]
inside.configure({"workdir": work, "root": work, "env": {"PATH": "/usr/bin:/bin"}})
os.makedirs(work + "/from/sub")
open(work + "/from/sub/file", "w").write("x")
os.symlink("sub", work + "/from/link")
_moved_by_copy(inside, "from", "to")
assert sorted(os.listdir(work)) == ["to"], os.listdir(work)
assert os.readlink(work + "/to/link") == "sub"
open(work + "/one", "w").write("1")
_moved_by_copy(inside, "one", "two")
assert sorted(os.listdir(work)) == ["to", "two"]
print("done")
"""


def test_a_guest_rehearses_and_moves_by_copying(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "")
