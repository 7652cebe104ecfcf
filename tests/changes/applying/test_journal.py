"""Whatever interrupts an apply or an undo, wherever: the next start heals it."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from trees import look, nothing_left_in, worked_on

from podbot import kernel
from podbot.changes.applying import _locks, _syncing, journal
from podbot.changes.applying.apply import apply
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import applications, forget, undo
from podbot.changes.capture import capture
from podbot.changes.drift import conflicts
from podbot.changes.model import ChangeSet
from podbot.config import places
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer

# Every kind of move: the order of the script is that of the docs.
PLANT = """
echo one > edited; echo two > gone; echo three > moved; echo four > moded
mkdir -p folder/inner; echo x > folder/inner/x; echo y > folder/y
mkdir becomes-file; echo z > becomes-file/z
echo w > becomes-folder; ln -s edited link; mkfifo pipe
echo same > twin-a; ln twin-a twin-b
mkdir shut; echo s > shut/s; chmod 555 shut
mkdir -m 750 other; touch -d 2020-02-02 other folder shut .
"""
WORK = """
echo more >> edited; rm gone pipe; mv moved elsewhere; chmod 600 moded; touch -d 2001-01-01 moded
rm -r folder; rm -r becomes-file; echo now > becomes-file
rm becomes-folder; mkdir becomes-folder; echo in > becomes-folder/in; chmod 500 becomes-folder
ln -sfn elsewhere link; mkfifo new-pipe; echo changed > twin-a
chmod 755 shut; echo new > shut/new; rm shut/s; chmod 555 shut
chmod 700 other; mkdir -p deep/er; echo d > deep/er/d; ln deep/er/d hard; ln edited hard-too
touch -d 2010-10-10 deep/er deep .
"""


@pytest.fixture(params=["one disk", "beside the layers", "two disks", "plain renames", "shelves"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What the file systems can do decides how things are kept and moved."""
    far = request.param in ("beside the layers", "two disks")
    disk = "/dev/shm" if far else "/var/tmp"
    with tempfile.TemporaryDirectory(prefix="podbot-state-", dir=disk) as state:
        monkeypatch.setenv(places.STATE_VARIABLE, state)
        monkeypatch.setattr(os, "fsync", lambda _: None)  # a killed process loses no page
        monkeypatch.setattr(_syncing, "file_system", lambda _: None)
        if request.param == "two disks":
            monkeypatch.setattr(Journal, "store_for", keep_here)
        if request.param == "plain renames":
            monkeypatch.setattr(kernel, "rename", refuse)
        if request.param == "shelves":
            monkeypatch.setattr(journal, "SHELF", 2)
        yield request.param


def keep_here(own: Journal, device: int) -> Path:
    assert os.lstat(own.folder).st_dev != device
    (own.folder / journal.KEPT).mkdir(mode=0o700, exist_ok=True)
    return own.folder / journal.KEPT


def refuse(*_: object) -> None:
    raise OSError(errno.EINVAL, "no such flag here")


@pytest.fixture
def target(where: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="podbot-target-", dir="/var/tmp")).resolve()
    subprocess.run(["bash", "-ec", f"umask 022; {PLANT}"], cwd=path, check=True)
    os.setxattr(path / "edited", "user.note", b"kept")
    yield path
    layers.remove(path)


CALLS = (
    "rename", "link", "unlink", "mkdir", "rmdir", "symlink", "mkfifo", "mknod", "chmod", "chown",
    "utime", "setxattr", "removexattr", "open", "write", "ftruncate", "copy_file_range",
)  # fmt: skip
"""Whatever can change something on a disk."""


def every_call(step: Callable[[str], None]) -> None:
    """Make each call that changes a disk a step, in this process and for good."""

    def counted(module: ModuleType, name: str) -> None:
        real = getattr(module, name)

        def call(*arguments: object, **options: object) -> object:
            if name != "open" or int(str(arguments[1])) & os.O_CREAT:
                step(name)
            return real(*arguments, **options)

        setattr(module, name, call)

    for name in CALLS:
        counted(os, name)
    counted(kernel, "rename")


def crash(action: Callable[[], object], at: int, calls: bool = False) -> bool:
    """Do it in a child that is killed before its step of this number; whether it came so far.

    With ``calls`` every single call that changes a disk is a step.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads do not matter here
        child = os.fork()
    if child == 0:
        left = [at]

        def step(_: str) -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        if calls:
            every_call(step)
        else:
            journal.step = step
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def layer_of(changes: ChangeSet) -> Layer:
    assert changes.layer_id is not None
    layer = layers.get(changes.layer_id)
    assert layer is not None
    return layer


def journals_of(layer: Layer) -> list[str]:
    return [own.id for own in journal.of_layer(layer.id)]


def slow(value: object) -> object:
    """A parameter of the tests that `make test` leaves out."""
    return pytest.param(value, marks=pytest.mark.slow)


LONG = ["one disk", "two disks", "plain renames", "shelves"]
"""A store beside the layers differs in where it is alone: the tests that take long leave it out."""


def on(*disks: str) -> pytest.MarkDecorator:
    """The long tests in `make test` try these."""
    kinds = [disk if disk in disks else slow(disk) for disk in LONG]
    return pytest.mark.parametrize("where", kinds, indirect=True)


@on("two disks")
def test_an_apply_that_is_killed_anywhere_is_taken_back(target: Path) -> None:
    before = look(target)
    changes, seen = worked_on(target, WORK)
    layer = layer_of(changes)

    for at in range(1000):
        current = capture(layer)
        assert conflicts(current) == (), at
        if not crash(lambda changes=current: apply(changes, allow_flagged=True), at):  # type: ignore[misc]
            break
        told = recover()
        if any(own.marked(journal.DONE) for own in journal.of_layer(layer.id)):
            # It came to its end, and had only to tidy up.
            assert look(target)["paths"] == seen["paths"]
            undo(layer.id)
        else:
            assert all(" (" in line for line in told), told
            assert journals_of(layer) == []
        assert look(target) == before, at
        assert nothing_left_in(target)
        forget(layer.id)
    assert at > 50
    assert look(target)["paths"] == seen["paths"]
    assert nothing_left_in(target)
    undo(layer.id)
    assert look(target) == before


@on("one disk")
def test_an_undo_that_is_killed_anywhere_is_completed(target: Path) -> None:
    before = look(target)
    changes, seen = worked_on(target, WORK)
    layer = layer_of(changes)

    for at in range(1000):
        apply(capture(layer), allow_flagged=True)
        assert look(target)["paths"] == seen["paths"], at
        killed = crash(lambda: undo(layer.id), at)
        begun = any(own.marked(journal.UNDOING) for own in journal.of_layer(layer.id))
        recover()
        if not begun:
            assert look(target)["paths"] == seen["paths"], at
            undo(layer.id)
        assert look(target) == before, at
        assert nothing_left_in(target)
        assert [each.undone for each in applications(layer.id)] == [True]
        forget(layer.id)
        if not killed:
            break
    assert at > 50


STRIDE = int(os.environ.get("PODBOT_CRASH_STRIDE", "9"))
"""Every call would take minutes: each run of the tests tries some, and 1 tries all."""


@on("one disk", "two disks")
def test_a_kill_between_any_two_calls_is_healed(target: Path) -> None:
    before = look(target)
    changes, seen = worked_on(target, WORK)
    layer = layer_of(changes)

    for at in range(0, 5000, STRIDE):
        killed = crash(lambda: apply(capture(layer), allow_flagged=True), at, calls=True)
        recover()
        if any(own.is_active for own in journal.of_layer(layer.id)):
            assert look(target)["paths"] == seen["paths"], at
            assert nothing_left_in(target)
            crash(lambda: undo(layer.id), at, calls=True)
            recover()
            if any(own.is_active for own in journal.of_layer(layer.id)):
                undo(layer.id)
        assert look(target) == before, at
        assert nothing_left_in(target)
        forget(layer.id)
        if not killed:
            break
    apply(capture(layer), allow_flagged=True)
    for at in range(0, 5000, STRIDE):
        killed = crash(lambda: undo(layer.id), at, calls=True)
        recover()
        if any(own.is_active for own in journal.of_layer(layer.id)):
            assert look(target)["paths"] == seen["paths"], at
            continue
        assert look(target) == before, at
        assert nothing_left_in(target)
        if not killed:
            break
        forget(layer.id)
        apply(capture(layer), allow_flagged=True)


@pytest.mark.parametrize("first", [slow(8), 25, slow(40), 50])
def test_a_recovery_that_is_killed_again_and_again_gets_there(target: Path, first: int) -> None:
    before = look(target)
    changes, _ = worked_on(target, WORK)
    layer = layer_of(changes)
    assert crash(lambda: apply(changes), first)
    assert look(target) != before

    at = 0
    while crash(recover, at):
        at += 1

    assert look(target) == before
    assert nothing_left_in(target)
    assert journals_of(layer) == []
    assert conflicts(capture(layer)) == ()


def test_what_the_user_did_after_a_crash_is_not_touched(target: Path) -> None:
    changes, _ = worked_on(target, WORK)
    steps = count_steps(changes)
    again = capture(layer_of(changes))
    assert crash(lambda: apply(again), steps - 3)
    (target / "edited").write_text("mine\n")
    (target / "deep/mine").write_text("mine too\n")
    (target / "gone").write_text("another\n")

    told = recover()

    assert (target / "edited").read_text() == "mine\n"
    assert (target / "deep/mine").read_text() == "mine too\n"
    assert (target / "gone").read_text() == "another\n"
    assert sorted(os.listdir(target / "deep")) == ["mine"]
    for name in ("edited", "deep", "gone"):
        assert any(f"{target}/{name}: " in line for line in told), told
    kept = [Path(line.rpartition(" ")[2]) for line in told if "before is /" in line]
    assert sorted(path.read_text() for path in kept) == ["one\n", "two\n"]
    assert (target / "folder/inner/x").read_text() == "x\n"
    assert nothing_left_in(target)
    assert recover() == []


def count_steps(changes: ChangeSet) -> int:
    """How many steps applying takes until it is done; the host is as it was afterwards."""
    steps: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "step", steps.append)
        applied = apply(changes)
    undo(applied.id)
    forget(layer_of(changes).id)
    return steps.index("wrote done")


def test_a_journal_of_a_living_podbot_is_left_alone(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > x")
    own = None

    with _locks.held([str(target)], "applying"):
        own = journal.create(changes.layer_id)
        assert recover() == []
        assert own.folder.exists()

    recover()
    assert not own.folder.exists()


def test_a_second_apply_waits_and_then_says_that_another_is_at_work(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, _ = worked_on(target, "echo x > x")
    monkeypatch.setattr(_locks, "WAIT", 0.05)

    with _locks.held([str(target)], "applying"), pytest.raises(ChangesError) as caught:
        apply(changes)

    assert caught.value.kind is Kind.IN_USE
    apply(changes)
    undo(changes.layer_id or "")


def test_a_broken_journal_is_told_and_stops_nobody(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > x")
    assert crash(lambda: apply(changes), 6)
    (own,) = journal.of_layer(changes.layer_id or "")
    lines = (own.folder / journal.PLAN).read_text().splitlines()
    (own.folder / journal.PLAN).write_text("\n".join(lines[:-1]))

    told = recover()

    assert any("cut short" in line and str(own.folder) in line for line in told)
    (own.folder / journal.PLAN).write_text("\n".join(lines))
    recover()
    assert not (target / "x").exists()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        (journal.PLAN, lambda text: DEEP),
        (journal.PLAN, lambda text: text.partition("\n")[0] + f"\n{DEEP}"),
        (journal.PLAN, lambda text: re.sub('"created": [0-9.]+', '"created": 1e999', text)),
        (journal.PLAN, lambda text: re.sub('"created": [0-9.]+', '"created": NaN', text)),
        (journal.PLAN, lambda text: re.sub('"created": [0-9.]+', f'"created": {10**400}', text)),
        (journal.PLAN, lambda text: re.sub('"file", [0-9]+', '"file", 1e999', text)),
        (journal.PLAN, lambda text: re.sub('"file", [0-9]+', f'"file", {10**400}', text)),
        (journal.DONE, lambda text: DEEP),
        (journal.DONE, lambda text: text.replace("[0, ", "[1e999, ")),
        (journal.DONE, lambda text: re.sub('"file", [0-9]+', f'"file", {10**400}', text)),
    ],
)
def test_a_journal_that_makes_no_sense_names_itself_and_hides_nothing(
    target: Path, name: str, spoil: Callable[[str], str]
) -> None:
    changes, _ = worked_on(target, "echo x > x")
    applied = apply(changes)
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    path = Path(applied.journal, name)
    whole = path.read_text()
    spoiled = spoil(whole)
    assert spoiled != whole
    path.write_text(spoiled)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)
    assert caught.value.kind is Kind.STATE_FAILED
    assert applied.journal in caught.value.message

    assert len(capture(layer)) <= 1  # it shows what it cannot know to be applied
    others, _ = worked_on(target, "echo y > y")
    assert apply(others).changed
    with suppress(ChangesError):
        assert applications(applied.id.rpartition(".")[0])

    path.write_text(whole)
    undo(applied.id)
    assert not (target / "x").exists()


@pytest.mark.parametrize("text", [DEEP, "{", '{"moves": [[1]]}', '{"moves": [1e999]}'])
def test_an_undo_of_which_nobody_can_tell_what_it_was_of_is_not_gone_on_with(
    target: Path, text: str
) -> None:
    changes, _ = worked_on(target, "echo x > x; echo y > y")
    applied = apply(changes)
    own = journal.named(applied.id)
    assert own is not None
    own.mark_as(journal.UNDOING, text)

    (line,) = recover()
    assert str(own.folder) in line
    assert (target / "x").exists() and (target / "y").exists()
    os.unlink(own.folder / journal.UNDOING)
    undo(applied.id)


def test_the_whole_plan_is_on_disk_before_anything_moves(target: Path) -> None:
    changes, _ = worked_on(target, WORK)
    assert crash(lambda: apply(changes), 3)

    (own,) = journal.of_layer(changes.layer_id or "")
    head, *rest, end = map(json.loads, (own.folder / journal.PLAN).read_text().splitlines())

    assert [place for place, _ in head["places"]] == [str(target)]
    assert end[0] == "end" and sum(end[1:]) == len(rest)
    assert abs(head["created"] - time.time()) < 600
    recover()


def on_fire() -> OSError:
    return OSError(errno.EIO, "disk on fire")


# Made anew each time: an error that is kept keeps all that was open where it was raised.
@pytest.mark.parametrize("failure", [KeyboardInterrupt, on_fire])
def test_an_interruption_or_a_failure_anywhere_is_taken_back_at_once(
    target: Path, failure: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = look(target)
    changes, _ = worked_on(target, WORK)
    layer = layer_of(changes)

    for at in range(6, 40, 3):
        left = [at]

        def step(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise failure()

        monkeypatch.setattr(journal, "step", step)
        with pytest.raises((KeyboardInterrupt, ChangesError)) as caught:
            apply(capture(layer))

        if isinstance(caught.value, ChangesError):
            assert caught.value.kind is Kind.APPLY_FAILED
            assert "disk on fire" in caught.value.message
        assert look(target) == before
        assert nothing_left_in(target)
        assert journals_of(layer) == []
