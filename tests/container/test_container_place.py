"""A sandbox's own folder, and the door through which one guest comes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_engine import until

from podbot.errors import Kind, LaunchError
from podbot.sandbox import layers
from podbot.sandbox.container import place
from podbot.sandbox.container.place import Door, Place


def come(path: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(str(path))
    except OSError:
        line.close()
        raise
    return line


def test_a_place_is_private_and_goes_with_all_in_it(own_layers: Path) -> None:
    made = Place()
    assert made.path.parent == own_layers / "containers"
    assert made.path.stat().st_mode & 0o077 == 0
    (made.workspace / "d").mkdir(mode=0)
    made.remove()
    made.remove()
    assert not made.path.exists()


def test_no_room_for_a_place_is_an_error(own_layers: Path) -> None:
    (own_layers / "containers").write_text("in the way")
    with pytest.raises(LaunchError, match="cannot be made") as caught:
        Place()
    assert caught.value.kind is Kind.LAYER_FAILED


def test_a_sweep_takes_what_nobody_holds(own_layers: Path) -> None:
    assert place.sweep() == []
    live = Place()
    code = "from podbot.sandbox.container.place import Place; print(Place().path)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    dead = Path(done.stdout.strip())
    fresh, old = (own_layers / "containers" / f".new-{name}" for name in ("fresh", "old"))
    for draft in (fresh, old):
        draft.mkdir()
    os.utime(old, (0, 0))
    assert set(place.sweep(dry_run=True)) == {dead.name, old.name}
    assert dead.exists()
    assert set(place.sweep()) == {dead.name, old.name}
    assert not dead.exists() and not old.exists()
    assert live.path.exists() and fresh.exists()
    assert place.any_left()
    live.remove()
    fresh.rmdir()
    assert not place.any_left()


def test_the_door_takes_one_and_closes_behind_it(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)  # a path longer than a socket's address
    deep.mkdir()
    door = Door(deep)
    folder = os.open(deep, os.O_PATH)
    name = Path(f"/proc/self/fd/{folder}/{place.SOCKET}")
    far = come(name)
    line, visitor = door.wait(60, lambda: None)
    assert (visitor.pid, visitor.uid) == (os.getpid(), os.geteuid())
    assert not visitor.first
    assert not name.exists()
    with pytest.raises(OSError):
        come(name)
    line.sendall(b"x")
    assert far.recv(1) == b"x"
    for end in (line, far):
        end.close()
    os.close(folder)
    door.close()


def test_who_looks_can_end_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.01)
    door = Door(tmp_path)

    def look() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        door.wait(10, look)
    door.close()
    assert list(tmp_path.iterdir()) == []


def test_the_waiting_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.01)
    door = Door(tmp_path)
    with pytest.raises(LaunchError, match="did not connect") as caught:
        door.wait(0.01, lambda: None)
    assert caught.value.kind is Kind.GUEST_UNRESPONSIVE
    door.close()


def test_a_guest_that_comes_late_is_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.01)
    door = Door(tmp_path)
    looked = threading.Event()
    lines: list[socket.socket] = []
    late = threading.Thread(
        target=lambda: (looked.wait(60), lines.append(come(tmp_path / place.SOCKET)))
    )
    late.start()
    line, _ = door.wait(60, looked.set)
    late.join()
    line.close()
    lines[0].close()


def test_a_door_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Door(tmp_path / "missing")


def test_a_process_that_is_gone_is_nobodys_first() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert until(lambda: not os.path.exists(f"/proc/{ended.pid}"))
    assert not place._is_first(ended.pid)


def test_a_sweep_tells_only_what_it_removed(
    own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, loose = (own_layers / "containers" / name for name in ("stuck", "loose"))
    for dead in (stuck, loose):
        dead.mkdir(parents=True)
    really = layers.remove

    def remove(path: Path) -> None:
        if path == stuck:
            raise PermissionError(13, "Permission denied")
        really(path)

    monkeypatch.setattr(layers, "remove", remove)
    assert place.sweep(dry_run=True) == ["loose", "stuck"]
    assert place.sweep() == ["loose"]
    assert stuck.exists() and not loose.exists()
    monkeypatch.undo()
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(own_layers))
    assert place.sweep() == ["stuck"]


def test_a_place_that_cannot_be_removed_is_let_go(
    own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    made = Place()
    assert place.sweep(dry_run=True) == []
    with monkeypatch.context() as patch:
        patch.setattr(layers, "remove", remove)
        with pytest.raises(PermissionError):
            made.remove()
    assert place.sweep() == [made.path.name]
    made.remove()
    assert not made.path.exists()
