"""A path by itself is told as it is told among all, or not by itself at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podbot.changes.capture import read
from podbot.changes.diffs import one_path
from podbot.changes.model import ChangeSet
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.overlay.launcher import OverlaySandbox

PATHS = ("a", "b", "d/one", "d/two", "d/e/three", "link", "twin", "gone")


def plant(target: Path) -> None:
    (target / "d/e").mkdir(parents=True)
    for path in ("a", "b", "d/one", "d/two", "d/e/three", "gone"):
        (target / path).write_text(f"{path}\n" * 30)
    (target / "link").symlink_to("a")
    (target / "twin").hardlink_to(target / "b")


def worked_on(target: Path, *commands: str) -> Layer:
    with OverlaySandbox(target) as sandbox:
        for command in commands:
            sandbox.exec(["sh", "-c", command])
        layer = sandbox.layer
        assert layer is not None
    return layer


def told(changes: ChangeSet, path: str) -> list[object]:
    return [
        (change.kind, change.path, change.old, change.new, change.source)
        for change in changes
        if path in change.paths
    ]


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("echo x >> a", "a"),
        ("chmod 700 d/one", "d/one"),
        ("echo x > d/e/three; rm b", "d/e/three"),
        ("mkdir new; mv gone new; echo x >> a", "a"),
    ],
)
def test_a_file_that_was_only_edited_is_looked_at_alone(
    target: Path, command: str, path: str
) -> None:
    plant(target)
    layer = worked_on(target, command)

    for name in (path, f"{target}/{path}", f"./{path}"):
        alone = one_path.captured(layer, [name])
        assert alone is not None
        assert len(alone) == 1
        assert told(alone, path) == told(read(layer), path)
    assert len(read(layer, only=[path])) == 1


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("mv a c", ["a"]),  # perhaps a part of a rename
        ("mv a c", ["c"]),
        ("echo x >> b", ["b"]),  # it has another name
        ("ln d/one again", ["d/one"]),
        ("rm -r d; mkdir d; echo x > d/one", ["d/one"]),  # below a folder made anew
        ("echo x >> a", ["d"]),
        ("echo x >> a", ["."]),
        ("echo x >> a", ["a", "nothing"]),
        ("echo x >> a", ["?"]),
        ("echo x >> a", [""]),
        ("echo x >> a", ["../a"]),
        ("ln -sf b link", ["link"]),
    ],
)
def test_whatever_may_be_a_part_of_something_else_is_not(
    target: Path, command: str, paths: list[str]
) -> None:
    plant(target)
    layer = worked_on(target, command)

    assert one_path.captured(layer, paths) is None
    assert told(read(layer, only=paths), "a") == told(read(layer), "a")


names = st.sampled_from([*PATHS, "new", "d/new", "d/e/new"])
steps = st.one_of(
    st.builds("echo x >> {}".format, names),
    st.builds("rm -rf {}".format, st.sampled_from([*PATHS, "d", "d/e"])),
    st.builds("mv {} {}".format, names, names),
    st.builds("ln {} {}".format, names, names),
    st.builds("mkdir -p {}".format, st.sampled_from(["d", "d/e", "new"])),
    st.builds("chmod 700 {}".format, names),
)


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(work=st.lists(steps, min_size=1, max_size=8))
def test_what_is_told_alone_is_what_is_told_among_all(target: Path, work: list[str]) -> None:
    here = target / "here"
    here.mkdir()
    try:
        plant(here)
        layer = worked_on(here, *work)
        if not layer.path.exists():
            return
        whole = read(layer)
        for path in [*PATHS, "new", "d/new"]:
            alone = one_path.captured(layer, [path])
            if alone is not None:
                assert told(alone, path) == told(whole, path), path
        layer.discard()
    finally:
        layers.remove(here)
