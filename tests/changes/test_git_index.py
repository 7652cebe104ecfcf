"""A git index is compared by what it lists: one `git status` later it is still the same."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import look, worked_on

from podbot.changes import _git_index
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.changes.drift import conflicts
from podbot.changes.model import ChangeSet
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.policy import Policy

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str, stdin: str | None = None) -> str:
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    done = subprocess.run(
        [*GIT, *arguments], cwd=folder, env=environment, check=True, capture_output=True,
        input=None if stdin is None else stdin.encode(),
    )  # fmt: skip
    return os.fsdecode(done.stdout)


@pytest.fixture(params=["sha1", "sha256"])
def project(target: Path, own_state: Path, request: pytest.FixtureRequest) -> Path:
    git(target, "init", "-q", f"--object-format={request.param}", ".")
    for name in ("a", "b", "d/c"):
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text(f"{name}\n")
    git(target, "add", ".")
    git(target, "commit", "-qm", "first")
    return target


def index_of(folder: Path) -> bytes:
    return (folder / ".git/index").read_bytes()


def listed(folder: Path) -> list[tuple[str, str, str, str]]:
    """What git itself says that the index lists."""
    found = []
    for line in git(folder, "ls-files", "--stage", "-z").split("\0")[:-1]:
        facts, path = line.split("\t", 1)
        mode, object_id, stage = facts.split()
        found.append((path, mode, object_id, stage))
    return found


def read(folder: Path) -> list[tuple[str, str, str, str]]:
    """What podbot says."""
    found = _git_index.listing(index_of(folder))
    assert found is not None
    return [
        (os.fsdecode(path), f"{mode:06o}", object_id.hex(), str(flags >> 12 & 3))
        for path, mode, object_id, flags, _ in found
    ]


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_it_reads_what_git_lists(project: Path, version: str) -> None:
    (project / ("long/" * 40)).mkdir(parents=True)
    (project / ("long/" * 40) / "x").write_text("x")
    (project / "tschüß\n\t").write_text("x")
    (project / "link").symlink_to("a")
    (project / "b").chmod(0o755)
    git(project, "add", ".")
    git(project, "update-index", "--index-version", version)
    if version != "2":
        (project / "intended").write_text("x")
        git(project, "add", "-N", "intended")
    git(project, "update-index", "--assume-unchanged", "a")

    assert read(project) == listed(project)


def test_conflicted_entries_are_read_with_their_stage(project: Path) -> None:
    object_id = git(project, "rev-parse", "HEAD:a").strip()
    lines = "".join(f"100644 {object_id} {stage}\tboth\n" for stage in (1, 2, 3))
    git(project, "update-index", "--index-info", stdin=lines)

    assert [stage for path, _, _, stage in read(project) if path == "both"] == ["1", "2", "3"]
    assert read(project) == listed(project)


def refresh(project: Path) -> None:
    """What a prompt does: the index is written anew, with what it lists as it was."""
    before = index_of(project)
    os.utime(project / "b", (1000, 1000))
    git(project, "status")
    assert index_of(project) != before


def test_a_refresh_changes_nothing_that_counts(project: Path) -> None:
    before = _git_index.listing(index_of(project))
    refresh(project)

    assert before is not None
    assert _git_index.listing(index_of(project)) == before


@pytest.mark.parametrize(
    "change",
    [
        ["rm", "-q", "--cached", "a"],
        ["update-index", "--chmod=+x", "a"],
        ["update-index", "--assume-unchanged", "a"],
        ["update-index", "--skip-worktree", "a"],
    ],
    ids=" ".join,
)
def test_what_counts_is_seen(project: Path, change: list[str]) -> None:
    before = _git_index.listing(index_of(project))
    git(project, *change)

    assert _git_index.listing(index_of(project)) not in (before, None)


def test_a_split_index_is_like_nothing(project: Path) -> None:
    git(project, "update-index", "--split-index")

    assert _git_index.listing(index_of(project)) is None


COMMIT = f"""
export HOME=$PWD; echo more >> a; echo new > d/new
{" ".join(GIT)} add . ; {" ".join(GIT)} commit -qm second
"""


def test_a_status_after_a_commit_was_applied_does_not_stop_its_undo(project: Path) -> None:
    before = look(project)
    changes, _ = worked_on(project, COMMIT)
    applied = apply(changes, allow_flagged=True)
    refresh(project)

    undo(applied.id)

    after = look(project)
    for name in ("b", ".git"):  # which were touched for the refresh, and by it
        before["paths"][repr(name)][4] = after["paths"][repr(name)][4]
    assert after == before


def test_what_was_staged_after_a_commit_was_applied_stops_its_undo(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    applied = apply(changes, allow_flagged=True)
    (project / "mine").write_text("mine\n")
    git(project, "add", "mine")

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    assert f"{project}/.git/index: " in caught.value.message


def test_a_status_after_an_apply_makes_no_conflict_for_what_is_left(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    apply(changes, allow_flagged=True, only=[".git"])
    refresh(project)

    assert [
        each.path for each in conflicts(capture(whole_layer(changes))) if "index" in each.path
    ] == []


def whole_layer(changes: ChangeSet) -> Layer:
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    return layer


def test_a_status_after_an_apply_leaves_nothing_to_apply(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    apply(changes, allow_flagged=True)
    refresh(project)

    assert [each.path for each in capture(whole_layer(changes))] == []


def test_a_status_in_the_sandbox_is_no_change(project: Path) -> None:
    changes, _ = worked_on(project, "export HOME=$PWD; touch -d 2001-01-01 b; git status")

    assert "index" not in [each.path.rpartition("/")[2] for each in changes]


def test_a_status_on_the_host_does_not_stop_the_apply_of_a_commit(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    refresh(project)
    again = capture(whole_layer(changes))

    assert conflicts(again) == ()
    apply(again, allow_flagged=True)
    assert git(project, "log", "--format=%s").split() == ["second", "first"]
    assert git(project, "status", "--porcelain") == ""


def test_a_status_on_the_host_does_not_stop_the_apply_of_what_was_staged(project: Path) -> None:
    changes, _ = worked_on(project, "export HOME=$PWD; echo more >> a; git add a")
    refresh(project)

    assert conflicts(capture(whole_layer(changes))) == ()


def test_what_was_staged_on_the_host_meanwhile_stops_the_apply_of_a_commit(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    (project / "mine").write_text("mine\n")
    git(project, "add", "mine")

    [found] = conflicts(capture(whole_layer(changes)))
    assert found.path == ".git/index"
    assert found.message == "the host has changed it since"


def test_an_index_that_the_policy_hides_is_not_kept(project: Path) -> None:
    changes, _ = worked_on(project, "echo more >> a", policy=Policy(hidden=(f"{project}/.git",)))

    assert not [*whole_layer(changes).path.glob("*.index")]


def test_an_index_that_is_no_file_hinders_no_sandbox(project: Path) -> None:
    (project / ".git/index").unlink()
    os.mkfifo(project / ".git/index")

    changes, _ = worked_on(project, "echo more >> a")

    assert not [*whole_layer(changes).path.glob("*.index")]


def test_a_status_after_an_undo_does_not_stop_the_next_apply(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    undo(apply(changes, allow_flagged=True).id)
    refresh(project)
    again = capture(whole_layer(changes))

    assert conflicts(again) == ()
    apply(again, allow_flagged=True)
    assert git(project, "log", "--format=%s").split() == ["second", "first"]
    assert git(project, "status", "--porcelain") == ""


def test_what_was_staged_after_an_undo_stops_the_next_apply(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    undo(apply(changes, allow_flagged=True).id)
    (project / "mine").write_text("mine\n")
    git(project, "add", "mine")

    assert ".git/index" in [each.path for each in conflicts(capture(whole_layer(changes)))]


def test_an_index_that_was_split_after_an_undo_stops_the_next_apply(project: Path) -> None:
    changes, _ = worked_on(project, COMMIT)
    undo(apply(changes, allow_flagged=True).id)
    git(project, "update-index", "--split-index")

    assert ".git/index" in [each.path for each in conflicts(capture(whole_layer(changes)))]


def test_a_stranger_may_write_anything_into_it(project: Path) -> None:
    whole = index_of(project)
    chance = random.Random(7)
    for _ in range(2000):
        data = bytearray(
            whole[: chance.randrange(len(whole) + 1)] if chance.random() < 0.3 else whole
        )
        for _ in range(chance.randrange(1, 6)):
            if data:
                data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        # With no checksum, as git may be told to write it.
        size = 20 if chance.random() < 0.5 else 32
        _git_index.listing(bytes(data))
        _git_index.listing(bytes(data[:-size]) + bytes(size))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_are_too_much(data: bytes) -> None:
    for version in (2, 3, 4):
        body = b"DIRC" + version.to_bytes(4) + data
        _git_index.listing(body + bytes(20))
        _git_index.listing(body + bytes(32))
    assert _git_index.listing(data) is None


names = st.lists(
    st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1,
            max_size=30).filter(lambda name: name.lower() not in (".", "..", ".git")),
    min_size=1, max_size=12, unique=True,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(names=names, version=st.sampled_from(["2", "3", "4"]))
def test_any_names_are_read_as_git_reads_them(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], version: str
) -> None:
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q", ".")
    object_id = git(folder, "hash-object", "-w", "--stdin", stdin="x").strip()
    lines = "".join(
        f"{mode} {object_id} 0\t{folder_}{name}\0"
        for name in names
        for mode, folder_ in (("100644", "folder/"), ("100755", ""))
    )
    done = subprocess.run(
        [*GIT, "update-index", "-z", "--index-info"], cwd=folder, input=lines.encode(),
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return  # a name that git itself refuses
    git(folder, "update-index", "--index-version", version)

    assert read(folder) == listed(folder)


@pytest.mark.parametrize("most", [None, 100])
def test_a_small_index_cannot_take_much_memory(
    most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = b"\0" * 24 + (0o100644).to_bytes(4) + b"\0" * 12 + b"\1" * 20 + b"\x0f\xff"
    # Each entry but the first is three bytes of name, and stands for a path of four thousand.
    names = [b"\0" + b"a" * 4000 + b"\0", *[b"\1b\0"] * 99]
    head = b"DIRC" + (4).to_bytes(4) + len(names).to_bytes(4)
    index = head + b"".join(entry + name for name in names) + b"\0" * 20
    if most is not None:
        monkeypatch.setattr(_git_index, "MAX_PATHS", most * 4000 - 1)

    assert (_git_index.listing(index) is None) == (most is not None)
    assert _git_index.listing(index.replace(b"a" * 4000, b"a" * 5000)) is None
