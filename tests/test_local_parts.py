"""What the local backend does when things go wrong around it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import podbot.sandbox
from podbot.errors import GuestLostError, Kind, LaunchError, SandboxError
from podbot.sandbox import interpreter, local, pipes


def test_a_guest_that_cannot_start_is_a_launch_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(interpreter, "command", lambda *_: ["/nonexistent/python"])
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


def children() -> set[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(word) for word in text.split()}


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
    before = children()
    sandbox = podbot.sandbox.open("local")
    (guest,) = children() - before
    pid = int(sandbox.exec(["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]).stdout)
    os.kill(guest, signal.SIGSTOP)
    sandbox.close()
    assert not runs(pid)


def test_a_guest_that_was_killed_is_an_error_and_its_children_go() -> None:
    before = children()
    sandbox = podbot.sandbox.open("local")
    (guest,) = children() - before
    pid = int(sandbox.exec(["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]).stdout)
    os.kill(guest, signal.SIGKILL)
    with pytest.raises(GuestLostError):
        sandbox.exec(["true"])
    sandbox.close()
    assert not runs(pid)


def test_no_pipe_left_is_named_and_leaks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = os.pipe2, []

    def scarce(flags: int) -> tuple[int, int]:
        if made:
            raise OSError(errno.EMFILE, "too many")
        made.append(real(flags))
        return made[0]

    monkeypatch.setattr(os, "pipe2", scarce)
    with pytest.raises(SandboxError) as caught:
        pipes.OutputPipes(1 << 20)
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
