"""What a program leaves in a layer is in the books: who opened it, and what it calls the work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import podbot.sandbox
from podbot import api, changes, runs
from podbot.api import LaunchRequest, Streams
from podbot.config import places
from podbot.errors import ChangesError, LaunchError
from podbot.runs import noting, records
from podbot.runs.records import Entry, Record
from podbot.sandbox import Sandbox, layers


@pytest.fixture(autouse=True)
def own_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Path) -> Iterator[Path]:
    """Runs of one test alone: no other's records, no other's layers."""
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    root = target.with_name(f"{target.name}-layers")
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(root))
    yield tmp_path / "state"
    if root.exists():
        layers.remove(root)


def opened(target: Path | None = None, **options: object) -> Sandbox:
    where = {} if target is None else {"target": target}
    return podbot.sandbox.open("overlay", **where, **options)


def only() -> Entry:
    (entry,) = runs.entries()
    return entry


def record_of(entry: Entry) -> Record:
    assert entry.record is not None
    return entry.record


def test_a_kept_layer_says_which_program_opened_it(target: Path) -> None:
    with opened(target) as sandbox:
        sandbox.write("new", "new")
    entry = only()
    record = record_of(entry)
    assert (entry.status, record.command, record.title) == ("kept", (), None)
    assert entry.made_by == f"opened by {layers.program()}"
    assert (record.backend, record.network, record.owner) == ("overlay", "none", os.getpid())
    assert record.guarantees == sandbox.guarantees
    assert record.ended is not None and record.ended >= record.started


def test_a_title_says_what_it_was_for(target: Path) -> None:
    with opened(target, title="fix the tests") as sandbox:
        sandbox.write("new", "new")
    assert only().made_by == "fix the tests"


def test_an_async_sandbox_is_in_the_books_too(target: Path) -> None:
    async def work() -> None:
        async with podbot.sandbox.open_async(
            "overlay", target=target, title="in a loop"
        ) as sandbox:
            await sandbox.write("new", "new")

    asyncio.run(work())
    assert only().made_by == "in a loop"
    assert record_of(only()).ended is not None


@pytest.mark.parametrize("title", ["", " ", "x" * 201, 5])
def test_what_cannot_be_a_title_is_refused(target: Path, title: object) -> None:
    with pytest.raises(LaunchError, match="cannot be the title"):
        opened(target, title=title)
    with pytest.raises(LaunchError, match="cannot be the title"):
        podbot.sandbox.open("container", target=target, title=title)


def test_nothing_is_noted_where_nothing_is_kept(target: Path, own_books: Path) -> None:
    with opened(target, title="nothing to do"):
        pass
    with opened(target, discard=True) as sandbox:
        sandbox.write("new", "new")
    assert runs.entries() == []
    assert not own_books.exists()


def test_one_that_is_killed_leaves_something_that_can_be_told_from_others(target: Path) -> None:
    program = (
        "import os, podbot.sandbox\n"
        f"s = podbot.sandbox.open('overlay', target={str(target)!r}, title='risky')\n"
        "s.write('new', 'new'); print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert only().made_by == "risky"  # while it works, too
        process.send_signal(signal.SIGKILL)
    entry = only()
    assert (entry.record, entry.made_by) == (None, "risky")


def test_one_that_ends_without_closing_is_noted(target: Path) -> None:
    program = (
        "import podbot.sandbox\n"
        f"s = podbot.sandbox.open('overlay', target={str(target)!r})\n"
        "s.write('new', 'new')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert only().made_by == "opened by python"
    assert record_of(only()).ended is not None


def test_going_on_in_a_run_is_added_to_its_record(target: Path) -> None:
    request = LaunchRequest(("touch", "one"), targets=(target,), name="first")
    with open(os.devnull, "r+b") as nothing:
        first = api.run(request, Streams(nothing.fileno(), nothing.fileno(), nothing.fileno()))
    with opened(layer=first.layer, title="by hand") as sandbox:
        sandbox.write("two", "two")
    record = record_of(only())
    assert (record.name, record.title, record.command) == ("first", "by hand", ())
    assert [past.command for past in record.earlier] == [("touch", "one")]


def test_who_went_on_in_it_meanwhile_keeps_the_record(target: Path) -> None:
    sandbox = opened(target, title="first")
    sandbox.write("new", "new")
    assert sandbox.layer is not None
    theirs = Record(
        sandbox.layer.id, None, ("other",), (str(target),), "overlay", "none",
        started=sandbox.layer.created + 60, owner=1,
    )  # fmt: skip
    records.write(theirs)  # as if another process had been quick
    sandbox.close()
    assert record_of(only()) == theirs


def test_a_lost_sandbox_that_is_opened_again_is_one_piece_of_work(target: Path) -> None:
    with opened(target, title="long") as sandbox:
        sandbox.write("one", "1")
    with opened(layer=sandbox.layer, title="long") as again:
        again.write("two", "2")
    record = record_of(only())
    assert (record.title, record.earlier) == ("long", ())


def test_a_layer_that_came_to_hold_nothing_goes_with_its_record(target: Path) -> None:
    with opened(target) as sandbox:
        sandbox.write("new", "new")
    with opened(layer=sandbox.layer) as again:
        again.remove("new")
    assert runs.entries() == []


def test_the_record_stays_while_something_can_be_undone(target: Path) -> None:
    with opened(target) as sandbox:
        sandbox.write("new", "new")
    assert sandbox.layer is not None
    changes.apply_changes(changes.read(sandbox.layer))
    noting.left(sandbox.layer.id)
    assert records.read(sandbox.layer.id) is not None
    changes.undo_changes(sandbox.layer.id)
    noting.left(sandbox.layer.id)
    assert records.read(sandbox.layer.id) is None


def test_a_full_state_folder_keeps_nobody_from_closing(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise ChangesError("no room", kind=podbot.sandbox.Kind.STATE_FAILED)

    sandbox = opened(target)
    sandbox.write("new", "new")
    monkeypatch.setattr(records, "write", full)
    sandbox.close()
    entry = only()
    assert (entry.record, entry.made_by) == (None, f"opened by {layers.program()}")


def test_what_a_program_loads_says_where_from(target: Path, tmp_path: Path) -> None:
    with opened(target) as sandbox:
        sandbox.write("new", "new")
    assert sandbox.layer is not None
    with open(tmp_path / "work.tar", "xb") as file:
        changes.save(changes.read(sandbox.layer), file)
    sandbox.layer.discard()
    with open(tmp_path / "work.tar", "rb") as file:
        layer = changes.load(file)
    assert only().id == layer.id
    assert only().made_by == "loaded from work.tar"


def test_a_load_that_fails_at_the_last_moment_leaves_nothing(target: Path, tmp_path: Path) -> None:
    def fails(layer: layers.Layer) -> None:
        assert records.read(layer.id) is not None
        raise RuntimeError("not now")

    with opened(target) as sandbox:
        sandbox.write("new", "new")
    assert sandbox.layer is not None
    with open(tmp_path / "work.tar", "xb") as file:
        changes.save(changes.read(sandbox.layer), file)
    sandbox.layer.discard()
    with open(tmp_path / "work.tar", "rb") as file, pytest.raises(RuntimeError):
        runs.load(file, note=fails)
    assert runs.entries() == []
