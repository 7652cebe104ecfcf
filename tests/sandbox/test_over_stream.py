"""A guest over a stream of bytes: how it begins, and what happens when it does not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from piped import PipedLauncher

from podbot.errors import GuestLostError, Kind, LaunchError
from podbot.sandbox import over_stream
from podbot.sandbox.over_stream import ByteStream, NoGuestError


def test_a_guest_comes_by_the_line_to_a_python_that_has_nothing_of_podbot() -> None:
    with PipedLauncher().sandbox() as sandbox:
        sandbox.write("a", b"x" * (3 << 20))
        assert sandbox.read("a") == b"x" * (3 << 20)
        assert sandbox.exec(["sh", "-c", "echo $0"]).stdout == "sh\n"
        assert sandbox.python("1 + 1").value == "2"


def test_what_a_process_writes_comes_in_frames_where_no_descriptor_can_be_passed() -> None:
    with (
        PipedLauncher().sandbox() as sandbox,
        sandbox.spawn(["head", "-c", "3000000", "/dev/zero"]) as process,
    ):
        assert len(process.stdout.read_all()) == 3_000_000
        assert process.wait() == 0


@pytest.mark.parametrize(
    "code",
    [
        "print('Welcome to this host! ' * 100, flush=True); input()",
        "import os; os.write(1, b'\\0\\0\\0\\3\\0\\0\\0\\0nop'); input()",
        "import os; os.write(1, b'\\0\\0\\0\\10\\0\\0\\0\\0{\"id\":2}'); input()",
        "import os; os.write(1, b'\\0\\0\\0\\10\\0\\0\\1\\0{\"id\":1}'); input()",
        "pass",
    ],
    ids=["a login's greeting", "no JSON", "another answer", "a payload", "nothing"],
)
def test_what_is_no_guest_is_refused_and_ended(code: str) -> None:
    launcher = PipedLauncher(command=[sys.executable, "-c", code])
    with pytest.raises(LaunchError) as caught:
        launcher.launch()
    assert caught.value.kind is Kind.START_FAILED
    assert "3.8" in (caught.value.remedy or "")


def test_who_says_nothing_is_not_waited_for_any_longer() -> None:
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with pytest.raises(NoGuestError, match="timed out"):
        PipedLauncher(command=silent, seconds=0.05).launch()


def test_the_last_of_what_was_said_is_told_and_commands_no_terminal() -> None:
    reading, out = os.pipe()
    into, writing = os.pipe()
    os.close(out)
    stream = over_stream.of_descriptors(reading, writing)
    with pytest.raises(NoGuestError) as caught:
        over_stream.boot(stream, said=lambda: "Traceback\n\x1b[31mno such host\n")
    os.close(into)
    assert caught.value.message.endswith("\\x1b[31mno such host")
    assert "Traceback" in caught.value.said


def test_when_the_other_side_dies_the_guest_is_lost() -> None:
    with PipedLauncher().sandbox() as sandbox:
        with pytest.raises(GuestLostError):
            sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 60"])
        with pytest.raises(GuestLostError):
            sandbox.read("a")


def test_both_descriptors_are_closed_when_the_sandbox_is() -> None:
    before = set(os.listdir("/proc/self/fd"))
    PipedLauncher().sandbox().close()
    for thread in threading.enumerate():
        if thread.name == "podbot-stream":
            thread.join(60)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_any_calls_that_read_and_write_will_do() -> None:
    ours, theirs = socket.socketpair()
    words = over_stream.command(sys.executable)
    there = subprocess.Popen(words, stdin=theirs, stdout=theirs)
    theirs.close()
    ended = threading.Event()
    stream = ByteStream(ours.recv, ours.sendall, lambda: ours.shutdown(socket.SHUT_WR), ended.set)
    over_stream.boot(stream).close()
    assert there.wait(60) == 0, "its input ended, and so did it"
    assert ended.wait(60)
    ours.close()


def test_the_guest_is_not_sent_where_it_is_already(tmp_path: Path) -> None:
    from podbot.sandbox import boot, guest

    there_already = boot.started_from(str(Path(guest.__file__).parent))
    reading, out = os.pipe()
    into, writing = os.pipe()
    words = boot.command("0 1", there_already, sys.executable)
    there = subprocess.Popen(words, stdin=into, stdout=out)
    os.close(into)
    os.close(out)
    over_stream.boot(over_stream.of_descriptors(reading, writing), send=False).close()
    assert there.wait(60) == 0
