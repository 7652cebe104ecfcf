"""The folders that hold the workspaces of container sections: marked, and swept after a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_in import PlainContainer, crashed
from workplace import Place

from podbot.cli import main
from podbot.engine import labels
from podbot.errors import ContainerError, Kind
from podbot.launch import containers as commands
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import layers
from podbot.tools import PodmanSandboxConfig, PodmanSandboxSection, cached

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise ContainerError("none here", kind=Kind.NO_ENGINE)

    monkeypatch.setattr(commands, "connect", connect)


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def test_a_sweep_removes_what_a_crash_left_unless_it_was_to_be_kept(cache: Path) -> None:
    crashed(cache / "unwanted", "remove", "a.txt")
    crashed(cache / "empty", "keep")
    crashed(cache / "wanted", "keep", "a.txt")
    cached.claim(cache / "mine", keep=False)
    (cache / "theirs" / "workspace").mkdir(parents=True)  # never marked
    (cache / "file").write_text("no folder")
    (cache / "link").symlink_to(cache / "unwanted")

    would = cached.sweep(dry_run=True)
    assert (cache / "unwanted" / "workspace" / "a.txt").exists()
    swept = cached.sweep()

    assert would == swept and swept.failed == ()
    assert names(swept.removed) == ["empty", "unwanted"]
    assert (names(swept.kept), names(swept.live)) == (["wanted"], ["mine"])
    left = sorted(entry.name for entry in cache.iterdir())
    assert left == ["file", "link", "mine", "theirs", "wanted"]
    assert (cache / "wanted" / "workspace" / "a.txt").read_text() == "written"


def test_a_folder_of_another_owner_on_the_same_files_stays(cache: Path) -> None:
    crashed(cache / "shared", "remove", "a.txt")
    owners = cache / "shared" / ".wink-metadata" / "owners"
    (owners / "other").write_text("1/another machine/boot/1/2/3\nremove\n")

    assert names(cached.sweep().live) == ["shared"]


@pytest.mark.parametrize("mark", ["", "half a ma", "\xff" * 1000])
def test_a_mark_that_makes_no_sense_counts_as_of_one_that_lives(cache: Path, mark: str) -> None:
    owners = cache / "odd" / ".wink-metadata" / "owners"
    owners.mkdir(parents=True)
    (owners / "mark").write_bytes(mark.encode("latin-1"))

    assert names(cached.sweep().live) == ["odd"]


def test_a_folder_that_is_being_filled_is_in_use(cache: Path) -> None:
    crashed(cache / "one", "remove")
    with cached._locked(cache / "one"):
        assert names(cached.sweep().live) == ["one"]
    assert names(cached.sweep().removed) == ["one"]


def test_whoever_takes_a_folder_up_after_a_crash_decides_about_it(cache: Path) -> None:
    crashed(cache / "one", "remove", "a.txt")

    mark = cached.claim(cache / "one", keep=True)
    crashed_beside = mark.with_name("beside")
    dead = subprocess.run(
        [sys.executable, "-c", "from podbot.engine import labels; print(labels.owner_label())"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    crashed_beside.write_text(f"{dead}remove\n")
    cached.finish(mark, keep=True)

    assert list(mark.parent.iterdir()) == []
    assert cached.sweep() == cached.SweptWorkspaces()
    assert (cache / "one" / "workspace" / "a.txt").exists()


def test_what_cannot_be_removed_is_told_and_keeps_no_other(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(cache / "a", "remove")
    crashed(cache / "b", "remove")
    real = layers.remove

    def refuse(path: Path) -> None:
        if path.name == "a":
            raise PermissionError(1, "not yours")
        real(path)

    monkeypatch.setattr(layers, "remove", refuse)

    swept = cached.sweep()

    assert names(swept.removed) == ["b"]
    ((path, error),) = swept.failed
    assert path == str(cache / "a") and error.kind is Kind.IO and "podman unshare" in str(error)


def test_a_folder_that_cannot_be_looked_into_is_not_taken_for_empty(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(cache / "one", "keep", "a.txt")
    closed = cache / "one" / "workspace"
    scandir = os.scandir

    def refuse(folder: Path) -> object:
        # Root would see into it. Path.iterdir comes by here too, from Python 3.13 on.
        if Path(folder) == closed:
            raise PermissionError(13, "its mode was changed from inside")
        return scandir(folder)

    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", refuse)
        assert not cached.is_empty(closed)
        assert cached._fate(cache / "one") == "kept"
    assert cached.is_empty(cache / "nothing")


def test_a_folder_is_not_removed_from_under_another_section(cache: Path) -> None:
    one, other = (cached.claim(cache / "shared", keep=False) for _ in range(2))
    (cache / "shared" / "workspace").mkdir()
    (cache / "shared" / "workspace" / "a.txt").write_text("still needed")

    cached.finish(one, keep=False)
    assert (cache / "shared" / "workspace" / "a.txt").exists()
    cached.finish(other, keep=False)
    assert not (cache / "shared").exists()


def test_a_cache_that_makes_no_sense_is_told_as_a_failure(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODBOT_CACHE", "relative")
    ((name, error),) = cached.sweep().failed
    assert name == "PODBOT_CACHE" and "absolute" in str(error)

    cache.write_text("a file")
    monkeypatch.setenv("PODBOT_CACHE", str(cache))
    assert cached.sweep() == cached.SweptWorkspaces()


def test_a_claim_is_of_a_folder_that_is_still_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may remove it between the making and the marking."""
    real, lost = cached._locked, []

    def locked(folder: Path, **options: Any) -> Any:
        if len(lost) < 2:
            lost.append(folder)
            if len(lost) == 1:
                folder.rmdir()
                return real(folder, **options)
            held = real(folder, **options)
            os.rename(folder, folder.with_name("elsewhere"))
            held = real(folder.with_name("elsewhere"), **options)
            folder.mkdir()
            return held
        return real(folder, **options)

    monkeypatch.setattr(cached, "_locked", locked)
    assert cached.claim(cache / "one", keep=True).is_file() and len(lost) == 2

    monkeypatch.setattr(cached, "TRIES", 0)
    with pytest.raises(OSError, match="keeps removing"):
        cached.claim(cache / "two", keep=True)


def section(**config: Any) -> Place:
    session = Session(bus=InProcessEventBus(), session_id="one")
    chosen = PodmanSandboxConfig(**config)
    return Place(session, PodmanSandboxSection(session=session, config=chosen))


@pytest.mark.parametrize("keep", [True, False])
def test_a_section_marks_its_folder_while_it_lives(
    cache: Path, containers: list[PlainContainer], keep: bool
) -> None:
    place = section(keep_workspace=keep)
    place.ok("write_file", file_path="a.txt", content="x")
    (mark,) = (cache / "one" / ".wink-metadata" / "owners").iterdir()
    assert mark.read_text() == f"{labels.owner_label()}\n{'keep' if keep else 'remove'}\n"
    assert names(cached.sweep().live) == ["one"]

    place.section.close()

    assert not mark.exists() and (cache / "one").exists() == keep
    assert cached.sweep() == cached.SweptWorkspaces()  # what was kept on purpose has no mark


@pytest.mark.usefixtures("no_engine")
def test_gc_tells_what_became_of_workspaces_and_what_to_type(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crashed(cache / "unwanted", "remove", "a.txt")
    crashed(cache / "wan ted", "keep", "a.txt")

    assert main(["gc", "--json", "--dry-run"]) == 0
    told = [each for each in json.loads(capsys.readouterr().out)["found"]
            if each["kind"] == "workspace"]  # fmt: skip
    assert [(each["fate"], Path(each["path"]).name) for each in told] == [
        ("removed", "unwanted"), ("kept", "wan ted"),
    ]  # fmt: skip
    assert told[1]["next"] == f"rm -rf '{cache / 'wan ted'}'"

    assert main(["gc"]) == 0
    shown = capsys.readouterr().out
    assert f"removed  workspace {cache / 'unwanted'}\n" in shown
    assert f"next: rm -rf '{cache / 'wan ted'}'" in shown
    assert [entry.name for entry in cache.iterdir()] == ["wan ted"]
