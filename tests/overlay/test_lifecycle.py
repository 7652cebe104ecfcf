"""How layers and sandboxes live and end: what stays, what goes, and what a sweep may touch."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from inside import unchanged, until

from podbot.errors import SandboxError
from podbot.sandbox import layers
from podbot.sandbox.overlay.launcher import OverlaySandbox


def names(root: Path) -> set[str]:
    """What is in a layer root besides the templates."""
    return {entry.name for entry in root.iterdir()} - {"templates"}


def test_a_layer_with_changes_stays(target: Path) -> None:
    with unchanged(target):
        with OverlaySandbox(target) as sandbox:
            sandbox.write("new.txt", b"new")
            sandbox.remove("README.md")

        upper = sandbox.layer.upper(0)
        assert (upper / "new.txt").read_bytes() == b"new"
        assert (upper / "README.md").is_char_device()
        assert not sandbox.layer.live
        assert not sandbox.layer.empty
        assert {p.name for p in sandbox.layer.path.iterdir()} == {"layer.json", "0.upper"}
    assert sandbox.layer.id in [layer.id for layer in layers.found()]
    sandbox.layer.discard()
    assert not sandbox.layer.path.exists()


def test_a_layer_without_changes_goes(target: Path, own_layers: Path) -> None:
    with OverlaySandbox(target) as sandbox:
        sandbox.exec(["sh", "-c", "cat README.md; echo x > ~/scratch; echo y > /tmp/scratch"])

    assert until(lambda: names(own_layers) == set())


def test_a_layer_goes_when_told_to(target: Path, own_layers: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        sandbox.write("new.txt", b"new")

    assert until(lambda: names(own_layers) == set())


def test_a_target_closed_from_inside_does_not_keep_the_sandbox_from_closing(target: Path) -> None:
    with OverlaySandbox(target) as sandbox:
        sandbox.exec(["sh", "-c", "echo x > new; chmod 000 ."])

    assert not sandbox.layer.live
    layers.sweep()
    sandbox.layer.upper(0).chmod(0o700)
    assert (sandbox.layer.upper(0) / "new").exists()
    sandbox.layer.discard()


def test_several_targets_have_each_their_own_changes(target: Path, folder: Path) -> None:
    other = folder.parent / f"{folder.name}-other"
    other.mkdir()
    try:
        with OverlaySandbox([target, other]) as sandbox:
            sandbox.write("one", b"1")
            sandbox.write(other / "two", b"2")
        assert (sandbox.layer.upper(0) / "one").exists()
        assert (sandbox.layer.upper(1) / "two").exists()
        assert list(other.iterdir()) == []
        sandbox.layer.discard()
    finally:
        other.rmdir()


def test_a_live_layer_cannot_be_discarded(sandbox: OverlaySandbox) -> None:
    assert sandbox.layer.live
    with pytest.raises(SandboxError) as caught:
        sandbox.layer.discard()

    assert caught.value.kind == "invalid"
    assert caught.value.remedy
    assert sandbox.exec(["true"]).ok


def test_a_sweep_removes_what_is_dead_and_empty_only(target: Path, own_layers: Path) -> None:
    with OverlaySandbox(target) as changed:
        changed.write("x", b"x")
    dead, lock = layers.create((str(target),), "overlay", True)
    os.close(lock)
    young = own_layers / "20260101-000000-11111111"
    young.mkdir()
    old = own_layers / "20260101-000000-00000000"
    old.mkdir()
    os.utime(old, (0, 0))
    trash = own_layers / f"{layers.TRASH}{old.name}"
    (trash / "deep").mkdir(parents=True)
    stray = own_layers / "notes.txt"
    stray.write_text("not ours")

    with OverlaySandbox(target, discard=True) as live:
        tried = layers.sweep(dry_run=True)
        assert dead.path.exists()
        swept = layers.sweep()
        assert swept.removed == tried.removed
        assert set(swept.removed) == {dead.id, old.name, trash.name}
        assert swept.kept == (changed.layer.id,)
        assert swept.live == (live.layer.id,)
        assert live.exec(["touch", "works"]).ok
        assert names(own_layers) == {changed.layer.id, live.layer.id, young.name, "notes.txt"}


def test_a_damaged_layer_that_holds_something_is_kept(own_layers: Path, target: Path) -> None:
    layer, lock = layers.create((str(target),), "overlay", True)
    os.close(lock)
    (layer.upper(0) / "work").write_text("of an hour")
    for damage in ("", "[]", "null"):
        (layer.path / layers.META).write_text(damage)
        os.utime(layer.path, (1, 1))

        assert layers.sweep().kept == (layer.id,)
        assert layers.found() == []
        assert layers.get(layer.id) is None
    assert (layer.upper(0) / "work").exists()


def test_a_sweep_in_another_process_leaves_live_layers_alone(
    target: Path, own_layers: Path
) -> None:
    import subprocess
    import sys

    code = "from podbot.sandbox import layers; print(*layers.sweep().live)"
    with OverlaySandbox(target, discard=True) as sandbox:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [sandbox.layer.id]
        assert sandbox.exec(["touch", "works"]).ok


def test_sweeping_and_opening_at_once_never_loses_a_live_layer(
    target: Path, own_layers: Path
) -> None:
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            layers.sweep()

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        for _ in range(20):
            with OverlaySandbox(target) as sandbox:
                sandbox.write("x", b"x")
            assert (sandbox.layer.upper(0) / "x").exists()
    finally:
        stop.set()
        thread.join()


def test_many_threads_open_and_close_at_once(target: Path) -> None:
    def work(number: int) -> str:
        with OverlaySandbox(target, discard=True) as sandbox:
            sandbox.write("mine", str(number))
            return sandbox.exec(["cat", "mine"]).stdout

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(work, range(48))) == [str(number) for number in range(48)]
    assert not (target / "mine").exists()


def test_one_sandbox_serves_many_threads(sandbox: OverlaySandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: sandbox.exec(["echo", str(n)]).stdout, range(100)))

    assert found == [f"{n}\n" for n in range(100)]


def test_descriptors_and_threads_are_back_after_many_sandboxes(
    target: Path, own_layers: Path
) -> None:
    def used() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with OverlaySandbox(target) as sandbox:
        sandbox.exec(["true"])
    before = used()
    for number in range(50):
        with OverlaySandbox(target) as sandbox:
            sandbox.exec(["true"])
            if number % 5 == 0:
                sandbox.spawn(["sleep", "100"])

    # Not one more of either; the first sandbox may have left some to be closed meanwhile.
    assert until(lambda: all(now <= then for now, then in zip(used(), before, strict=True)))
    assert until(lambda: names(own_layers) == set())


def test_a_sandbox_nobody_holds_any_more_is_ended(target: Path, own_layers: Path) -> None:
    sandbox = OverlaySandbox(target)
    sandbox.spawn(["sleep", "1000"])
    layer = sandbox.layer
    assert layer.live

    del sandbox
    gc.collect()

    assert until(lambda: not layer.live)
    assert until(lambda: names(own_layers) == set())


def test_closing_twice_and_from_two_threads_is_fine(target: Path) -> None:
    sandbox = OverlaySandbox(target, discard=True)
    threads = [threading.Thread(target=sandbox.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sandbox.close()

    with pytest.raises(SandboxError) as caught:
        sandbox.exec(["true"])
    assert caught.value.kind == "closed"


def test_closing_ends_a_call_under_way(target: Path) -> None:
    sandbox = OverlaySandbox(target, discard=True)
    errors: list[str] = []

    def wait() -> None:
        try:
            sandbox.exec(["sh", "-c", "touch begun; sleep 600"])
        except SandboxError as error:
            errors.append(error.kind)

    thread = threading.Thread(target=wait)
    thread.start()
    assert until(lambda: sandbox.exists("begun"))
    sandbox.close()
    thread.join(60)

    assert not thread.is_alive()
    assert errors == ["closed"]


def test_changes_of_the_host_show_until_the_sandbox_has_its_own(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        sandbox.write("README.md", b"mine")
        assert sandbox.read("README.md") == b"mine"
    assert (target / "README.md").read_text() == "read me\n"


def test_a_layer_that_is_kept_means_all_is_dead_when_close_returns(target: Path) -> None:
    for number in range(20):
        mark = f"{100_000 + os.getpid()}.{number}"
        sandbox = OverlaySandbox(target)
        sandbox.exec(["sh", "-c", f"setsid sleep {mark} >/dev/null 2>&1 &"]).check()
        sandbox.close()
        assert not any(f"sleep\0{mark}".encode() in line for line in command_lines())


def command_lines() -> list[bytes]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                found.append(Path(f"/proc/{name}/cmdline").read_bytes())
    return found
