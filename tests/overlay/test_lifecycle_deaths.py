"""Sudden ends: the host, the zygote or the guest is killed, or the host forks. Nothing is left."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from inside import until

from podbot.errors import GuestLostError, SandboxError
from podbot.sandbox import layers
from podbot.sandbox.overlay import owner
from podbot.sandbox.overlay.launcher import OverlaySandbox


def parents() -> dict[int, int]:
    """Every process of the host and its parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in b"ZX":
                found[int(name)] = int(fields[1])
    return found


def descendants(pid: int) -> set[int]:
    """Every process below one."""
    table = parents()
    found: set[int] = set()
    wave = {pid}
    while wave:
        wave = {child for child, parent in table.items() if parent in wave}
        found |= wave
    return found


def command_line(pid: int) -> bytes:
    """The words a process was started with; none of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def busy_guest(zygote: int) -> int | None:
    """The guest below which all sleep that the host below has started; None if not yet."""
    for guest in (pid for pid, parent in parents().items() if parent == zygote):
        lines = {command_line(pid) for pid in descendants(guest)}
        if {b"sleep\0%d\0" % number for number in (1000, 1001, 1002)} <= lines:
            return guest
    return None


def gone(pids: set[int]) -> bool:
    return not pids & set(parents())


# A host that opens a sandbox, keeps it busy, says what it has, and goes on until it is killed.
HOST = """
import json, os, sys, time
from podbot.sandbox.overlay import owner
from podbot.sandbox.overlay.launcher import OverlaySandbox
sandbox = OverlaySandbox(sys.argv[1])
sandbox.write("written", b"before")
sandbox.spawn(["sh", "-c", "setsid sleep 1000 & (sleep 1001 &) ; sleep 1002"])
sandbox.spawn(["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > counter; done"])
while not sandbox.exists("counter"):
    time.sleep(0.01)
print(json.dumps({"zygote": owner.zygote().pid, "layer": str(sandbox.layer.path)}), flush=True)
END
"""


def start_host(target: Path, end: str = "time.sleep(1000)") -> tuple[subprocess.Popen[str], dict]:
    code = HOST.replace("END", end)
    host = subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    return host, json.loads(host.stdout.readline())


def finish(host: subprocess.Popen[str]) -> None:
    host.kill()
    host.wait()
    assert host.stdout is not None
    host.stdout.close()


@pytest.mark.parametrize("victim", ["host", "zygote", "guest"])
def test_killing_one_of_them_leaves_no_process_and_loses_no_file(
    target: Path, own_layers: Path, victim: str, chance: random.Random
) -> None:
    host, facts = start_host(target)
    try:
        assert until(lambda: busy_guest(facts["zygote"]) is not None)
        family = descendants(facts["zygote"]) | {facts["zygote"]}
        assert len(family) >= 6
        time.sleep(chance.random() * 0.2)
        if victim == "guest":
            found = busy_guest(facts["zygote"])
            assert found is not None
            pid = found
            family = descendants(pid) | {pid}
        else:
            pid = host.pid if victim == "host" else facts["zygote"]
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: gone(family)), descendants(pid)
    finally:
        finish(host)

    (layer,) = [layer for layer in layers.found() if str(layer.path) == facts["layer"]]
    assert (layer.upper(0) / "written").read_bytes() == b"before"
    assert (layer.upper(0) / "counter").exists()
    assert until(lambda: not layer.live)
    assert layers.sweep().kept == (layer.id,)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3])
def test_a_host_killed_while_it_starts_a_sandbox_leaves_nothing(
    target: Path, own_layers: Path, delay: float, chance: random.Random
) -> None:
    code = """
import sys
from podbot.sandbox.overlay.launcher import OverlaySandbox
print("go", flush=True)
while True:
    OverlaySandbox(sys.argv[1]).close()
"""
    host = subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    host.stdout.readline()
    time.sleep(delay + chance.random() * 0.02)
    family = descendants(host.pid)
    finish(host)

    assert until(lambda: gone(family))
    # A child made after the family was counted needs a moment to see that its owner is gone.
    assert until(lambda: not any(layer.live for layer in layers.found()))
    old = time.time() - 3600

    def swept() -> bool:
        for entry in own_layers.iterdir():
            with suppress(FileNotFoundError):  # its zygote may still be removing, too
                os.utime(entry, (old, old))
        layers.sweep()
        return {entry.name for entry in own_layers.iterdir()} <= {"templates"}

    assert until(swept)


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise KeyboardInterrupt", "os._exit(0)",
                                 "os.abort()", "os.kill(os.getpid(), 15)"])  # fmt: skip
def test_a_host_that_ends_without_closing_leaves_no_process(
    target: Path, own_layers: Path, end: str
) -> None:
    host, facts = start_host(target, end)
    host.wait(60)
    finish(host)

    def leftovers() -> set[int]:
        return descendants(facts["zygote"]) | ({facts["zygote"]} & set(parents()))

    assert until(lambda: not leftovers())
    assert (Path(facts["layer"]) / "0.upper" / "written").read_bytes() == b"before"


def guest_of(sandbox: OverlaySandbox) -> int:
    """The host's pid of a guest, found by a command of it that only it runs."""
    marker = f"98761.{random.SystemRandom().randrange(10**9):09d}"
    sandbox.spawn(["sleep", marker])

    def found() -> list[int]:
        line = f"sleep\0{marker}\0".encode()
        return [parent for pid, parent in parents().items() if command_line(pid) == line]

    assert until(lambda: len(found()) == 1)
    return found()[0]


def test_a_killed_guest_is_an_error_not_a_hang(sandbox: OverlaySandbox, folder: Path) -> None:
    guest = guest_of(sandbox)
    timer = threading.Timer(0.3, os.kill, (guest, signal.SIGKILL))
    timer.start()
    with pytest.raises(GuestLostError) as caught:
        sandbox.exec(["sleep", "600"])
    timer.join()

    assert caught.value.kind == "guest_lost"
    with pytest.raises(GuestLostError):
        sandbox.read("README.md")
    with OverlaySandbox(folder, discard=True) as another:
        assert another.exec(["true"]).ok


def test_a_killed_zygote_is_an_error_and_the_next_sandbox_has_a_new_one(target: Path) -> None:
    with OverlaySandbox(target) as sandbox:
        sandbox.write("kept", b"kept")
        zygote = owner.zygote().pid
        family = descendants(zygote) | {zygote}
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(SandboxError) as caught:
            sandbox.exec(["sleep", "600"], timeout=60)
        assert caught.value.kind == "guest_lost"
        assert until(lambda: gone(family))
        with OverlaySandbox(target, discard=True) as another:
            assert another.exec(["true"]).ok
            assert owner.zygote().pid != zygote
    assert (sandbox.layer.upper(0) / "kept").read_bytes() == b"kept"
    sandbox.layer.discard()


def test_the_death_of_one_guest_leaves_the_others(target: Path, sandbox: OverlaySandbox) -> None:
    with OverlaySandbox(target, discard=True) as other:
        os.kill(guest_of(other), signal.SIGKILL)
        with pytest.raises(GuestLostError):
            other.exec(["sleep", "600"])
    assert sandbox.exec(["true"]).ok


def in_fork(action: object) -> int:
    """Run something in a fork; gives its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = action()  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_sandbox_cannot_be_used_by_a_fork(sandbox: OverlaySandbox) -> None:
    def child() -> int:
        try:
            sandbox.exec(["true"])
        except SandboxError as error:
            return 7 if error.kind == "foreign_process" else 8
        return 9

    assert in_fork(child) == 7
    assert sandbox.exec(["true"]).ok


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_that_closes_or_forgets_a_sandbox_does_not_end_it(sandbox: OverlaySandbox) -> None:
    import gc

    def closing() -> int:
        sandbox.close()
        return 0

    def exiting() -> int:
        gc.collect()
        import atexit

        atexit._run_exitfuncs()
        return 0

    assert in_fork(closing) == 0
    assert sandbox.exec(["true"]).ok
    assert in_fork(exiting) == 0
    assert sandbox.exec(["true"]).ok


def open_one(target: str) -> tuple[str, int]:
    """What a child process does with a sandbox of its own."""
    with OverlaySandbox(target, discard=True) as sandbox:
        return sandbox.exec(["echo", "child"]).stdout, owner.zygote().pid


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_open_their_own_sandboxes(sandbox: OverlaySandbox, method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map(open_one, [sandbox.workdir] * 4)

    assert {text for text, _ in found} == {"child\n"}
    assert owner.zygote().pid not in {zygote for _, zygote in found}
    assert sandbox.exec(["true"]).ok


def test_the_zygote_of_a_dead_fork_goes_and_ours_stays(sandbox: OverlaySandbox) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        _, zygote = pool.apply(open_one, (sandbox.workdir,))

    assert until(lambda: zygote not in parents())
    assert sandbox.exec(["true"]).ok
