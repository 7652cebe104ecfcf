"""What was done in a container is reviewed, applied and taken back, with the right owners.

On an engine of root's the guest is never root: for root's own folder it is nobody, whom the folder
is shown as his or who works on a copy; for a user's folder it is that user.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from small_engine import SmallEngine

from podbot import kernel
from podbot.changes import capture
from podbot.changes.applying import apply, undo
from podbot.sandbox import ContainerSandbox

EXPECTED = {
    "a.txt": "modified", "link": "deleted", "new": "added", "src": "replaced",
    "src/b.py": "deleted", "src/c.py": "added",
}  # fmt: skip


def worked_on(engine: SmallEngine, target: Path, **options: object) -> ContainerSandbox:
    """A sandbox in which something of each kind was done."""
    sandbox = ContainerSandbox(target, image="image", engine=engine, **options)  # type: ignore[arg-type]
    with sandbox:
        sandbox.write("a.txt", "two\n")
        sandbox.remove("link")
        sandbox.write("new", "x")
        sandbox.exec(["sh", "-c", "rm -r src && mkdir src && echo c > src/c.py"]).check()
    return sandbox


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_uid,
            path.lstat().st_mode,
            os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def reviewed(sandbox: ContainerSandbox, target: Path, kinds: dict[str, str]) -> None:
    """Its changes are those; applied they are there, owned as the target; undone they are not."""
    assert sandbox.layer is not None
    owner = target.stat().st_uid
    before = tree(target)
    changes = capture.capture(sandbox.layer)
    assert {change.path: change.kind.value for change in changes.changes} == kinds
    for change in changes.changes:
        assert change.new is None or change.new.uid == owner
    applied = apply.apply(changes)
    after = tree(target)
    assert {uid for uid, _, _ in after.values()} == {owner}
    assert set(after) == {"a.txt", "new", "src", "src/c.py"}
    assert after["a.txt"][2] == b"two\n"
    assert capture.capture(sandbox.layer).changes == ()
    undo.undo(applied.id)
    assert tree(target) == before
    sandbox.layer.discard()


def test_an_overlay_of_ones_own_engine(engine: SmallEngine, target: Path) -> None:
    sandbox = worked_on(engine, target)
    assert sandbox.layer is not None and sandbox.layer.method == "overlay"
    reviewed(sandbox, target, EXPECTED)


def test_a_copy_on_ones_own_engine(engine: SmallEngine, target: Path) -> None:
    sandbox = worked_on(engine, target, workspace="copy")
    kinds = {path: kind for path, kind in EXPECTED.items() if path != "src"}
    reviewed(sandbox, target, kinds)


def test_roots_own_folder_is_worked_on_by_nobody(
    roots_engine: SmallEngine, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(kernel, "clone_tree", refuse)
    with ContainerSandbox(target, image="image", engine=roots_engine, discard=True) as sandbox:
        assert sandbox.exec(["id", "-u"]).stdout == "65534\n"
        assert sandbox.exec(["stat", "-c", "%u", "."]).stdout == "65534\n"
        assert "works on a copy" in sandbox.notes[0]
    sandbox = worked_on(roots_engine, target)
    assert sandbox.layer is not None and sandbox.layer.method == "copy"
    kinds = {path: kind for path, kind in EXPECTED.items() if path != "src"}
    reviewed(sandbox, target, kinds)


def test_a_users_folder_is_worked_on_by_its_owner(roots_engine: SmallEngine, target: Path) -> None:
    for path in (target, *target.rglob("*")):
        os.chown(path, 1234, 1234, follow_symlinks=False)
    sandbox = worked_on(roots_engine, target)
    assert sandbox.layer is not None
    assert (sandbox.layer.method, sandbox.layer.traits.marks) == ("overlay", "trusted")
    reviewed(sandbox, target, EXPECTED)


def test_a_mark_that_the_guest_makes_itself_means_nothing(
    roots_engine: SmallEngine, target: Path
) -> None:
    for path in (target, *target.rglob("*")):
        os.chown(path, 1234, 1234, follow_symlinks=False)
    with ContainerSandbox(target, image="image", engine=roots_engine) as sandbox:
        code = "import os; os.setxattr('src', 'user.overlay.opaque', b'y'); open('src/x', 'w')"
        sandbox.exec(["python3", "-c", code]).check()
    assert sandbox.layer is not None
    kinds = {change.path: change.kind.value for change in capture.capture(sandbox.layer).changes}
    assert kinds == {"src/x": "added"}
    sandbox.layer.discard()


def test_a_handed_over_folder_is_written_at_once(roots_engine: SmallEngine, target: Path) -> None:
    options = {"image": "image", "engine": roots_engine, "workspace": "bind", "hand_over": True}
    with ContainerSandbox(target, **options) as sandbox:  # type: ignore[arg-type]
        sandbox.write("new", "x")
        assert sandbox.layer is None
    assert (target / "new").stat().st_uid == 65534


def test_several_owners_are_told_apart_in_a_copy(roots_engine: SmallEngine, target: Path) -> None:
    os.chown(target / "src", 1234, 1234)
    os.chown(target / "src" / "b.py", 1234, 1234)
    with ContainerSandbox(target, image="image", engine=roots_engine) as sandbox:
        sandbox.write("src/b.py", "b = 2\n")
        sandbox.write("src/c.py", "c = 3\n")
    assert sandbox.layer is not None
    found = {change.path: change.new for change in capture.capture(sandbox.layer).changes}
    assert {path: state.uid for path, state in found.items() if state is not None} == {
        "src/b.py": 1234, "src/c.py": 0,
    }  # fmt: skip
    sandbox.layer.discard()
