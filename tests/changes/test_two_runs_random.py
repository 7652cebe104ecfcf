"""Two runs with random edits of the same files: every file is what `git merge-file` makes of it.

What git merges is merged, what it does not is refused and left as the first run made it; undoing
both, in their order, gives back exactly what was there.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_three_way import Git, edited_lines
from trees import a_moment_after, keep_in_the_state_folder, look

from podbot.changes.applying.apply import apply
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.undo import undo
from podbot.changes.capture import read
from podbot.changes.diffs.three_way import merge
from podbot.changes.drift import ConflictKind, conflicts
from podbot.config import places
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.overlay.launcher import OverlaySandbox

Files = dict[str, bytes | None]
"""What a side has at each path; None is nothing."""

FILES = 6

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture(scope="module", params=["one disk", "two disks"])
def git(request: pytest.FixtureRequest) -> Iterator[Git]:
    """What git makes of three files; and a state that keeps things by moving or by copying them."""
    far = request.param == "two disks"
    disk = "/dev/shm" if far else "/var/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="podbot-state-", dir=disk) as state,
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(places.STATE_VARIABLE, state)
        if far:
            patch.setattr(Journal, "store_for", keep_in_the_state_folder)
        yield Git(Path(folder))


def sides_of_files(dice: random.Random) -> tuple[Files, Files, Files]:
    """What was there, and what each of two runs makes of it."""
    base: Files = {}
    host: Files = {}
    run: Files = {}
    for number in range(FILES):
        name = f"f{number}"
        lines = [f"{name} line {line}\n" for line in range(dice.randint(0, 30))]
        base[name], host[name], run[name] = (
            _some(dice, "".join(lines).encode()),
            _some(dice, edited_lines(dice, lines, "host", 2)),
            _some(dice, edited_lines(dice, lines, "run", 2)),
        )
        for side in (host, run):
            if dice.random() < 0.1:
                side[name] = base[name]
        if dice.random() < 0.1:
            run[name] = host[name]
    return base, host, run


def _some(dice: random.Random, text: bytes) -> bytes | None:
    return None if dice.random() < 0.05 else text


def made(folder: Path, files: Files) -> None:
    for name, data in files.items():
        if data is not None:
            (folder / name).write_bytes(data)


def ran(folder: Path, before: Files, after: Files) -> Layer | None:
    a_moment_after(time.time_ns())
    with OverlaySandbox(folder) as sandbox:
        for name, data in after.items():
            if data == before[name]:
                continue
            if data is None:
                sandbox.remove(name)
            else:
                sandbox.write(name, data)
    a_moment_after(time.time_ns())
    layer = sandbox.layer
    return layer if layer is not None and layer.path.exists() else None


def found(folder: Path, files: Files) -> Files:
    return {
        name: (folder / name).read_bytes() if (folder / name).exists() else None for name in files
    }


def wanted(git: Git, base: bytes | None, host: bytes | None, run: bytes | None) -> bytes | None:
    """What both make of a file; raises if that is for a person to say."""
    if run in (host, base):
        return host
    if host == base:
        return run
    if host is None or run is None:
        raise ValueError("one of them removed it")
    if base is None:
        raise ValueError("both added it")  # git would take either for the text, were one empty
    merged = git.merged(base or b"", host, run)
    if merged is None:
        raise ValueError("they overlap")
    return merged


def check(git: Git, seed: int) -> None:
    base, host, run = sides_of_files(random.Random(seed))
    folder = Path(tempfile.mkdtemp(prefix="podbot-two-", dir="/var/tmp")).resolve()
    try:
        made(folder, base)
        before = look(folder)
        first, second = ran(folder, base, host), ran(folder, base, run)
        if first is not None:
            apply(read(first), allow_flagged=True)
        assert found(folder, base) == host
        between = look(folder)
        if second is None:
            return
        results: Files = {}
        refused: set[str] = set()
        for name in base:
            try:
                results[name] = wanted(git, base[name], host[name], run[name])
            except ValueError:
                results[name] = host[name]
                refused.add(name)
        changes = read(second)
        in_the_way = conflicts(changes)
        assert {each.path for each in in_the_way} == refused
        for each in in_the_way:
            is_text = host[each.path] is not None and run[each.path] is not None
            assert (each.kind is ConflictKind.OVERLAP) == is_text, each
        applied = apply(changes, allow_flagged=True, on_conflict="skip")
        assert found(folder, base) == results
        assert {change.path for change, _ in applied.skipped} == refused
        assert {change.path for change in read(second)} == refused, "nothing else is left"
        if first is not None:
            assert not read(first), "nothing of the first came back"
        if applied.id:
            undo(second.id)
        assert look(folder) == between
        if first is not None:
            undo(first.id)
        assert look(folder) == before
    finally:
        for layer in layers.found():
            if str(folder) in layer.targets:
                layer.discard()
        layers.remove(folder)


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_two_runs_give_what_git_makes_of_them(git: Git, seed: int) -> None:
    check(git, seed)


@pytest.mark.slow
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_hundreds_of_pairs_of_runs_give_what_git_makes_of_them(git: Git, seed: int) -> None:
    check(git, seed)


# A sandbox that lives while the first run is applied


def check_a_living_one(seed: int) -> None:
    """What is merged is what follows from the version that it really began with."""
    dice = random.Random(seed)
    base = [f"line {number}\n" for number in range(dice.randint(1, 14))]
    text = "".join(base).encode()
    folder = Path(tempfile.mkdtemp(prefix="podbot-two-", dir="/var/tmp")).resolve()
    try:
        made(folder, {"file": text})
        first = ran(folder, {"file": text}, {"file": edited_lines(dice, base, "host", 2)})
        a_moment_after(time.time_ns())
        begun_with: bytes | None = None
        with OverlaySandbox(folder) as sandbox:
            for applied in (False, True):
                if applied and first is not None:
                    apply(read(first))
                a_moment_after(time.time_ns())
                if dice.random() < 0.6:
                    seen = sandbox.read("file")
                    begun_with = seen if begun_with is None else begun_with
                    seen_lines = [f"{line}\n" for line in seen.decode().splitlines()]
                    sandbox.write("file", edited_lines(dice, seen_lines, "run", 2))
                a_moment_after(time.time_ns())
        if begun_with is None or sandbox.layer is None or not sandbox.layer.path.exists():
            return
        host = (folder / "file").read_bytes()
        run = Path(sandbox.layer.upper(0) / "file").read_bytes()
        changes = read(sandbox.layer)
        if conflicts(changes):
            return
        apply(changes)
        assert (folder / "file").read_bytes() == merge(begun_with, host, run).contents
    finally:
        for layer in layers.found():
            if str(folder) in layer.targets:
                layer.discard()
        layers.remove(folder)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_a_living_run_loses_nothing_whatever_it_had_seen(git: Git, seed: int) -> None:
    check_a_living_one(seed)


@pytest.mark.slow
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_hundreds_of_living_runs_lose_nothing(git: Git, seed: int) -> None:
    check_a_living_one(seed)
