"""Root's own folder, shown to nobody as nobody's: no copy, nothing left mounted, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_engine import SmallEngine

from podbot import kernel
from podbot.changes import capture
from podbot.changes.applying import apply, undo
from podbot.sandbox import ContainerSandbox, layers
from podbot.sandbox.container import _idmapped
from podbot.sandbox.container import place as places
from podbot.sandbox.container._idmapped import Unmappable, View
from podbot.sandbox.container.place import Place


@pytest.fixture
def place(own_layers: Path, target: Path) -> Iterator[Place]:
    """A sandbox's own folder, where the kernel can map ids below it."""
    if os.geteuid() != 0:
        pytest.skip("only root can map root's ids")
    made = Place()
    try:
        View(str(target), made.lower).try_overlay(made.workspace)
        yield made
    except Unmappable as unmappable:
        pytest.skip(str(unmappable))
    finally:
        made.remove()


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def opened(engine: SmallEngine, target: Path, **options: object) -> ContainerSandbox:
    return ContainerSandbox(target, image="image", engine=engine, **options)  # type: ignore[arg-type]


def test_nobody_works_on_roots_folder_without_a_copy(
    place: Place, roots_engine: SmallEngine, target: Path
) -> None:
    os.chmod(target / "a.txt", 0o600)
    os.chown(target / "src", 0, 1234)
    with opened(roots_engine, target) as sandbox:
        assert sandbox.exec(["id", "-u"]).stdout == "65534\n"
        assert sandbox.exec(["stat", "-c", "%u:%g", ".", "a.txt", "src"]).stdout.split() == [
            "65534:65534", "65534:65534", "65534:1234",
        ]  # fmt: skip
        assert not any("copy" in note for note in sandbox.notes)
        # An overlay keeps what it was mounted from.
        assert str(layers.root() / places.FOLDER) not in mounts()
        code = "echo two >> a.txt; rm -r src; mkdir src; echo c > src/c.py; ln a.txt second"
        sandbox.exec(["sh", "-c", code]).check()
        sandbox.stop()
        assert sandbox.exec(["cat", "a.txt"]).stdout == "one\ntwo\n"
    layer = sandbox.layer
    assert layer is not None and (layer.method, layer.traits.nobody) == ("overlay", 65534)
    assert (target / "a.txt").read_text() == "one\n"

    with ContainerSandbox(image="image", engine=roots_engine, layer=layer) as again:
        assert again.exec(["cat", "src/c.py"]).stdout == "c\n"

    changes = capture.capture(layer)
    found = {change.path: (change.kind.value, change.new) for change in changes.changes}
    assert {path: kind for path, (kind, _) in found.items()} == {
        "a.txt": "modified", "second": "hard_link", "src": "replaced", "src/b.py": "deleted",
        "src/c.py": "added",
    }  # fmt: skip
    assert {new.uid for _, new in found.values() if new is not None} == {0}
    applied = apply.apply(changes)
    assert (target / "src" / "c.py").stat().st_uid == 0
    undo.undo(applied.id)
    assert (target / "src" / "b.py").read_text() == "b = 1\n"
    layer.discard()


def test_what_others_own_in_it_is_copied_too(
    place: Place, roots_engine: SmallEngine, target: Path
) -> None:
    os.chown(target / "src" / "b.py", 1234, 1234)
    with opened(roots_engine, target, discard=True) as sandbox:
        assert "src/b.py in it is user 1234's" in sandbox.notes[0]
        sandbox.write("src/b.py", "b = 2\n")


def test_an_engine_that_does_not_see_the_mount_gets_a_copy(
    place: Place, roots_engine: SmallEngine, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = kernel.attach, []

    def attach(mount: int, path: bytes, dir_fd: int = kernel.AT_FDCWD) -> None:
        made.append(path)
        if len(made) == 1:  # the trial, which the engine has no part in
            real(mount, path, dir_fd)

    monkeypatch.setattr(kernel, "attach", attach)
    with opened(roots_engine, target, discard=True) as sandbox:
        assert "does not see what podbot mounts" in sandbox.notes[0]
        assert sandbox.read("a.txt") == b"one\n"
    assert len(made) == 2


def test_an_engine_that_is_reached_through_itself_gets_a_copy(
    place: Place, roots_engine: SmallEngine, target: Path
) -> None:
    roots_engine.shuts_sockets = True
    with opened(roots_engine, target, discard=True) as sandbox:
        assert "it cannot be looked into" in sandbox.notes[0]
        assert sandbox.read("a.txt") == b"one\n"


def test_the_mount_is_read_only_and_hides_what_lies_beneath(place: Place, target: Path) -> None:
    view = View(str(target), place.lower)
    with view.mounted():
        assert (place.lower / "a.txt").stat().st_uid == 65534
        assert not (place.lower / _idmapped.UNMOUNTED).exists()
        with pytest.raises(OSError, match="Read-only"):
            (place.lower / "a.txt").unlink()
    assert os.listdir(place.lower) == [_idmapped.UNMOUNTED]


def test_a_folder_that_became_a_link_is_not_followed(place: Place, target: Path) -> None:
    away = target.with_name(f"{target.name}.away")
    os.rename(target, away)
    target.symlink_to("/etc")
    try:
        with pytest.raises(Unmappable), View(str(target), place.lower).mounted():
            pass
    finally:
        target.unlink()
        os.rename(away, target)


def test_what_a_killed_start_left_mounted_is_swept(place: Place, target: Path) -> None:
    code = (
        "import os, sys\n"
        "from podbot.sandbox.container._idmapped import View\n"
        "from podbot.sandbox.container.place import Place\n"
        "made = Place()\n"
        "with View(sys.argv[1], made.lower).mounted():\n"
        "    print(made.path, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert done.returncode == -9, done.stderr
    assert f"{left}/{places.LOWER}" in mounts()

    assert left.name in places.sweep()

    assert not left.exists() and str(left) not in mounts()
    assert (target / "src" / "b.py").read_text() == "b = 1\n"
    assert place.path.exists(), "its owner lives"


def test_the_next_start_over_a_folder_of_roots_sweeps_too(
    place: Place, roots_engine: SmallEngine, target: Path
) -> None:
    dead = layers.root() / places.FOLDER / "0123456789abcdef"
    (dead / places.LOWER).mkdir(parents=True)
    with opened(roots_engine, target, discard=True):
        assert not dead.exists()
