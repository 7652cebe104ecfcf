"""What a container is given of podbot: made once, read-only in effect, replaced by versions."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from podbot.errors import LaunchError
from podbot.sandbox import boot, interpreter, layers
from podbot.sandbox.container import _kit


def test_a_kit_is_made_once_and_readable_by_anyone(own_layers: Path) -> None:
    found = _kit.path()
    assert _kit.path() == found
    assert found.parent == own_layers / "kits"
    assert [entry.name for entry in found.parent.iterdir()] == [found.name]
    for entry in (found, *found.rglob("*")):
        assert entry.stat().st_mode & 0o004


def test_a_kit_that_was_swept_away_is_made_again(own_layers: Path) -> None:
    found = _kit.path()
    shutil.rmtree(found)
    assert (_kit.path() / "guest" / "main.py").exists()


def test_two_that_make_the_same_kit_share_it(
    own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(draft: Path, made: Path) -> None:
        made.mkdir()  # someone else was first
        raise FileExistsError

    monkeypatch.setattr(os, "rename", too_late)
    found = _kit.path()
    assert [entry.name for entry in found.parent.iterdir()] == [found.name]


def test_no_room_for_a_kit_is_an_error_with_a_remedy(own_layers: Path) -> None:
    (own_layers / "kits").write_text("in the way")
    _kit._made.cache_clear()
    with pytest.raises(LaunchError, match="cannot be put into") as caught:
        _kit.path()
    assert layers.ROOT_VARIABLE in (caught.value.remedy or "")


def test_kits_of_other_versions_are_dropped(own_layers: Path) -> None:
    _kit.drop_old()  # there is none yet
    found = _kit.path()
    (found.parent / "0123456789abcdef").mkdir()
    _kit.drop_old()
    assert [entry.name for entry in found.parent.iterdir()] == [found.name]


def test_the_compiled_guest_is_what_python_takes(own_layers: Path, tmp_path: Path) -> None:
    copy = tmp_path / "kit"
    shutil.copytree(_kit.path(), copy)
    for source in (copy / "guest").glob("*.py"):
        source.write_text("not what is run")
    whole = boot.started_from(str(copy / "guest"))
    code = whole.replace("main.main()", "print(main.main.__module__)")
    command = [sys.executable, "-I", "-S", "-B", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "podbot.sandbox.guest.main\n"


def test_a_python_that_is_too_old_says_so() -> None:
    old = _kit.START.replace("sys.version_info", "(3, 6)")
    done = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "podbot: Python 3." in done.stderr


def test_a_guest_can_come_by_the_line() -> None:
    near, far = socket.socketpair()
    words = _kit.command("0 1", boot.BOOT)
    guest = subprocess.Popen([sys.executable, *words[1:]], stdin=far, stdout=far)
    far.close()
    near.sendall(boot.sent())
    body = b'{"id":7,"op":"processes"}'
    near.sendall(len(body).to_bytes(4, "big") + bytes(4) + body)
    assert b'"id":7' in near.recv(1000)
    near.close()
    assert guest.wait(60) == 0


def test_a_guest_that_nobody_sends_ends() -> None:
    words = _kit.command("0 1", boot.BOOT)
    done = subprocess.run(
        [sys.executable, *words[1:]], input=b"\0\0", capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"nobody is there" in done.stderr


@pytest.mark.parametrize(
    ("head", "static"),
    [
        (b"#!/bin/sh\n", False),
        (b"", False),
        (b"\x7fELF\x01" + bytes(100), False),
        (b"\x7fELF\x02" + bytes(100), False),
    ],
    ids=["a script", "nothing", "32 bits", "no program headers"],
)
def test_only_a_program_that_needs_no_library_is_given_along(
    tmp_path: Path, head: bytes, static: bool
) -> None:
    program = tmp_path / "rg"
    program.write_bytes(head)
    assert _kit._is_static(str(program)) is static


def test_programs_are_told_apart_by_what_they_name(tmp_path: Path) -> None:
    assert not _kit._is_static(os.path.realpath("/bin/sh"))
    assert not _kit._is_static(str(tmp_path / "missing"))
    assert not _kit._is_static(None)


def test_a_host_without_rg_gives_none(own_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "ripgrep", lambda: None)
    assert _kit.ripgrep() is None
    assert not (_kit.path() / "rg").exists()


def test_a_static_rg_is_given_along(own_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One program header, of a kind that is no interpreter.
    head = bytearray(b"\x7fELF\x02" + bytes(200))
    head[32:40] = (64).to_bytes(8, "little")
    head[54:58] = (56).to_bytes(2, "little") + (1).to_bytes(2, "little")
    head[64] = 1
    program = own_layers / "rg"
    program.write_bytes(head)
    monkeypatch.setattr(interpreter, "ripgrep", lambda: str(program))
    assert _kit.ripgrep() == "/run/podbot/kit/rg"
    assert os.access(_kit.path() / "rg", os.X_OK)
    head[64] = 3  # PT_INTERP
    program.write_bytes(head)
    _kit._is_static.cache_clear()
    assert _kit.ripgrep() is None
