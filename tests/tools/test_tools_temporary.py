"""Folders of local sections whose process was killed: known in a list, and swept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from workplace import Place

from podbot.cli import main
from podbot.engine import labels
from podbot.errors import ContainerError, Kind
from podbot.launch import containers as commands
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection, temporary

KILLED = """
import os, signal, sys
from podbot.prompt import Prompt
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection
session = Session(bus=InProcessEventBus(), session_id="killed")
config = UnsafeLocalSandboxConfig(workspace_root=sys.argv[1])
section = UnsafeLocalSandboxSection(session=session, config=config)
prompt = Prompt(ns="tests", key="killed", sections=[section])
prompt.call("write_file", {"file_path": "a.txt", "content": "x"}, session=session)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where workspaces are made; the list is this test's own."""
    monkeypatch.setenv("PODBOT_STATE", str(tmp_path / "state"))
    with tempfile.TemporaryDirectory(prefix="podbot-test-") as folder:
        yield Path(folder)


def killed(root: Path) -> Path:
    """The folder of a section whose process was killed."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(root)], check=False)
    assert done.returncode == -signal.SIGKILL
    (folder,) = root.glob("wink-killed-*")
    assert (folder / "workspace" / "a.txt").exists()
    return folder


def used(root: Path) -> Place:
    session = Session(bus=InProcessEventBus(), session_id="next")
    config = UnsafeLocalSandboxConfig(workspace_root=root)
    place = Place(session, UnsafeLocalSandboxSection(session=session, config=config))
    place.ok("ls")
    return place


def test_the_next_section_removes_what_a_killed_one_left(root: Path) -> None:
    left = killed(root)
    place = used(root)
    assert not left.exists()
    assert [entry.name.rpartition("-")[0] for entry in root.iterdir()] == ["wink-next"]
    place.section.close()


def test_gc_removes_what_a_killed_section_left_and_nothing_in_use(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: object) -> None:
        raise ContainerError("none here", kind=Kind.NO_ENGINE)

    monkeypatch.setattr(commands, "connect", connect)
    place = used(root)
    (mine,) = root.iterdir()
    left = killed(root)
    main(["gc", "--dry-run", "--json"])
    assert left.exists()
    capsys.readouterr()
    main(["gc", "--json"])
    found = {line["path"]: line["fate"] for line in json.loads(capsys.readouterr().out)["found"]}
    assert (found[str(left)], found[str(mine)]) == ("removed", "live")
    assert not left.exists() and mine.exists()
    place.section.close()


def test_a_folder_that_ends_as_it_should_leaves_no_entry(root: Path, tmp_path: Path) -> None:
    used(root).section.close()
    assert list((tmp_path / "state" / "workspaces").iterdir()) == []
    assert list(root.iterdir()) == []


def test_no_folder_is_removed_but_the_one_of_its_entry(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "owner_alive", lambda _: False)
    listed = tmp_path / "state" / "workspaces"
    listed.mkdir(parents=True)
    (root / "precious").mkdir()
    (root / "wink-a-1").mkdir()
    (root / "wink-link-3").symlink_to(root / "precious")
    for name, line in (
        ("1", f"x\n{root}/precious"),
        ("2", f"x\n{root}/wink-a-1"),
        ("3", f"x\n{root}/wink-link-3"),
        ("4", "nonsense"),
    ):
        (listed / name).write_text(line)
    assert temporary.sweep().removed == ()
    assert sorted(entry.name for entry in root.iterdir()) == ["precious", "wink-a-1", "wink-link-3"]


def test_a_workspace_is_made_where_no_list_can_be_kept(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PODBOT_STATE", str(tmp_path / "file" / "state"))
    place = used(root)
    assert len(os.listdir(root)) == 1
    place.section.close()
    assert os.listdir(root) == []
