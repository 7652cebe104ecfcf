"""What a session knows of files: the values, the reducers, and looking into a sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podbot.errors import Kind, SandboxError
from podbot.prompt import Prompt
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session, Snapshot
from podbot.sandbox import LocalSandbox, MemorySandbox, Sandbox
from podbot.tools import (
    SNAPSHOT_TYPES,
    DeleteEntry,
    UnsafeLocalSandboxConfig,
    UnsafeLocalSandboxSection,
    VfsFile,
    VfsPath,
    VirtualFileSystem,
    WriteFile,
    _mirror,
    make_delete_reducer,
    make_write_reducer,
)
from podbot.tools._mirror import Mirror
from podbot.tools.filesystem import WriteMode
from podbot.tools.reducers import FileChange, FilesSeen, files_seen

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def path(text: str) -> VfsPath:
    return VfsPath(tuple(text.split("/")))


def file(name: str, content: str | None = "x", version: int = 1) -> VfsFile:
    size = len(content or "")
    return VfsFile(path(name), content, "utf-8", size, version, NOON, NOON)


def system(*names: str) -> VirtualFileSystem:
    known = VirtualFileSystem()
    for name in names:
        known = known.put(file(name))
    return known


@pytest.fixture
def session() -> Session:
    session = Session(bus=InProcessEventBus(), clock=lambda: NOON)
    files = session.mutate(VirtualFileSystem)
    files.register(WriteFile, make_write_reducer())
    files.register(DeleteEntry, make_delete_reducer())
    files.register(FilesSeen, files_seen)
    return session


def known(session: Session) -> dict[str, tuple[str | None, int]]:
    value = session.query(VirtualFileSystem).latest()
    assert value is not None
    return {str(each.path): (each.content, each.version) for each in value.files}


# The value


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["a", "a/b", "a-b", "b", "b/c", "b/c/d", "a/b/c"]), max_size=12))
def test_files_are_kept_sorted_and_once(names: list[str]) -> None:
    value = system(*names)
    segments = [each.path.segments for each in value.files]
    assert segments == sorted({tuple(name.split("/")) for name in names})
    assert all(value.find(path(name)) is not None for name in names)
    assert value.find(path("zzz")) is None


def test_removing_a_folder_removes_what_is_in_it_and_nothing_else() -> None:
    value = system("a", "a-b", "a/b", "a/b/c", "a/c", "ab")
    assert [str(each.path) for each in value.without(path("a/b")).files] == [
        "a", "a/c", "a-b", "ab",
    ]  # fmt: skip
    assert value.without(path("zzz")) is value


def test_many_changes_at_once_are_the_same_as_one_by_one() -> None:
    value = system("a", "b", "c")
    changed = value.changed({path("b"): None, path("d"): file("d"), path("zzz"): None})
    assert changed == value.without(path("b")).put(file("d"))


# Reducers


@pytest.mark.parametrize(
    ("mode", "before", "content", "after"),
    [
        ("create", None, "new", ("new", 1)),
        ("overwrite", "old", "new", ("new", 2)),
        ("append", "old", "new", ("oldnew", 2)),
        ("append", None, "new", ("new", 1)),
        ("overwrite", "same", "same", ("same", 1)),
        ("overwrite", "old", None, (None, 2)),
        ("append", "old", None, (None, 2)),
    ],
)
def test_a_write_has_three_modes(
    session: Session,
    mode: WriteMode,
    before: str | None,
    content: str | None,
    after: tuple[str | None, int],
) -> None:
    if before is not None:
        session.mutate().dispatch(WriteFile(path("a"), before))
    session.mutate().dispatch(WriteFile(path("a"), content, mode))
    assert known(session) == {"a": after}


def test_a_write_takes_its_time_from_a_clock(session: Session) -> None:
    later = NOON + timedelta(hours=1)
    session.mutate().dispatch(WriteFile(path("a"), "é"))
    session.mutate(VirtualFileSystem).register(WriteFile, make_write_reducer(lambda: later))
    session.mutate().dispatch(WriteFile(path("a"), "éé", "overwrite"))
    value = session.query(VirtualFileSystem).latest()
    assert value is not None
    written = value.files[0]
    assert (written.created_at, written.updated_at, written.size_bytes) == (NOON, later, 4)


def test_a_deletion_takes_all_below(session: Session) -> None:
    for name in ("a/b", "a/c", "d"):
        session.mutate().dispatch(WriteFile(path(name), name))
    session.mutate().dispatch(DeleteEntry(path("a")))
    assert list(known(session)) == ["d"]


def test_a_look_does_not_undo_what_an_event_did_meanwhile(session: Session) -> None:
    session.mutate(VirtualFileSystem).seed(system("a", "b"))
    value = session.query(VirtualFileSystem).latest()
    assert value is not None
    old_a, old_b = value.find(path("a")), value.find(path("b"))
    session.mutate().dispatch(WriteFile(path("a"), "newer", "overwrite"))
    seen = FilesSeen(
        (
            FileChange(path("a"), old_a, file("a", "as it was seen", 2)),
            FileChange(path("b"), old_b, None),
            FileChange(path("c"), None, file("c", "c")),
        )
    )
    session.mutate(VirtualFileSystem).dispatch(seen)
    assert known(session) == {"a": ("newer", 2), "c": ("c", 1)}


def test_a_look_that_saw_not_everything_says_so(session: Session) -> None:
    session.mutate(VirtualFileSystem).dispatch(FilesSeen((), complete=False))
    assert session.query(VirtualFileSystem).latest() == VirtualFileSystem((), complete=False)


def test_results_tell_a_model_what_was_done() -> None:
    assert WriteFile(path("a/b"), "abc").render() == "a/b (create, 3 characters)"
    assert WriteFile(path("a"), None, "overwrite").render() == "a (overwrite)"
    assert DeleteEntry(path("a")).render() == "a"


# Snapshots


def test_a_session_that_used_every_tool_survives_as_json(tmp_path: Path) -> None:
    session = Session(bus=InProcessEventBus())
    section = UnsafeLocalSandboxSection(
        session=session, config=UnsafeLocalSandboxConfig(workspace_root=tmp_path)
    )
    with Prompt(ns="a", key="b", sections=[section]) as prompt:
        for name, arguments in (
            ("write_file", {"file_path": "a/b.txt", "content": "é\n"}),
            ("edit_file", {"file_path": "a/b.txt", "old_string": "é", "new_string": "e"}),
            ("read_file", {"file_path": "a/b.txt"}),
            ("ls", {}),
            ("glob", {"pattern": "**"}),
            ("grep", {"pattern": "e"}),
            ("shell_execute", {"command": ["printf", "\\377"], "env": {"A": "b"}}),
            ("evaluate_python", {"code": "1/0"}),
            ("evaluate_python", {"code": "1"}),
            ("rm", {"path": "a"}),
            ("rm", {"path": "a"}),
        ):
            prompt.call(name, arguments)
        before = session.snapshot()
        text = before.to_json()
        other = Session(bus=InProcessEventBus())
        read = Snapshot.from_json(text, types={*session.types, *SNAPSHOT_TYPES})
        other.mutate().rollback(read)
        for kind in before.slices:
            assert other.query(kind).all() == session.query(kind).all()


# Looking


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with MemorySandbox(files={"there": "before"}) as sandbox:
        yield sandbox


def seen(looks: FilesSeen, value: VirtualFileSystem) -> VirtualFileSystem:
    return value.changed({change.path: change.after for change in looks.changes})


def test_nothing_changed_is_nothing_to_tell(sandbox: Sandbox) -> None:
    watcher = Mirror()
    value = seen(watcher.compare(sandbox, VirtualFileSystem()), VirtualFileSystem())
    assert [each.content for each in value.files] == [None]
    again = watcher.compare(sandbox, value)
    assert again.changes == () and again.complete


def test_a_seed_that_is_as_the_file_is_keeps_its_version(sandbox: Sandbox) -> None:
    value = system().put(file("there", "before", 3))
    (change,) = Mirror().compare(sandbox, value).changes
    assert change.after is not None
    assert (change.after.content, change.after.version) == ("before", 3)


def test_a_seed_whose_text_nobody_knows_is_taken_at_its_word(sandbox: Sandbox) -> None:
    stated = VfsFile(path("there"), None, "binary", 6, 1, NOON, NOON)
    (change,) = Mirror().compare(sandbox, system().put(stated)).changes
    assert change.after is not None
    assert (change.after.content, change.after.version) == (None, 1)
    assert change.after.encoding == "binary"


def test_only_so_many_files_are_read_in_one_look(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mirror, "READS", 2)
    watcher = Mirror()
    value = seen(watcher.compare(sandbox, VirtualFileSystem()), VirtualFileSystem())
    for name in "abc":
        sandbox.write(name, name)
    value = seen(watcher.compare(sandbox, value), value)
    assert [each.content for each in value.files] == ["a", "b", None, None]


def test_of_too_many_files_the_newest_are_known_and_the_others_counted(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mirror, "ENTRIES", 4)
    watcher = Mirror()
    value = VirtualFileSystem()
    for number in range(10):
        sandbox.write(f"{number}", f"{number}")
        found = watcher.compare(sandbox, value)
        value = replace(seen(found, value), complete=found.complete, left_out=found.left_out)
    assert {"6", "7", "8", "9"} <= {str(each.path) for each in value.files}
    assert not value.complete
    assert value.left_out == 11 - len(value.files)
    assert value.find(path("9")) is not None


def test_files_that_go_while_they_are_read_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalSandbox(tmp_path) as sandbox:
        watcher = Mirror()
        watcher.compare(sandbox, VirtualFileSystem())
        sandbox.write("a", "text")
        real = Sandbox.newest

        def listed(self: Sandbox, *args: object, **options: object) -> object:
            found = real(self, *args, **options)  # type: ignore[arg-type]
            os.remove(tmp_path / "a")
            return found

        monkeypatch.setattr(Sandbox, "newest", listed)
        (change,) = watcher.compare(sandbox, VirtualFileSystem()).changes
        assert change.after is not None and change.after.content is None


@pytest.mark.parametrize("verb", ["newest", "read", "stat"])
def test_a_sandbox_that_fails_is_not_taken_for_an_empty_one(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def failing(*args: object, **options: object) -> object:
        raise SandboxError("gone", kind=Kind.GUEST_LOST)

    watcher = Mirror()
    value = seen(watcher.compare(sandbox, VirtualFileSystem()), VirtualFileSystem())
    sandbox.write("new", "x")
    if verb == "stat":
        monkeypatch.setattr(_mirror, "ENTRIES", 1)
        value = value.put(file("there"))  # the other one is newer
    monkeypatch.setattr(Sandbox, verb, failing)
    with pytest.raises(SandboxError, match="gone"):
        watcher.compare(sandbox, value)


@pytest.mark.parametrize("mtime_ns", [-(2**63), 2**63 - 1])
def test_a_time_from_outside_of_the_calendar_is_some_time(mtime_ns: int) -> None:
    assert _mirror.moment(mtime_ns).tzinfo is UTC
    assert _mirror.moment(10**30) == datetime(1970, 1, 1, tzinfo=UTC)
