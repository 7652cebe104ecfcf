"""What is known of runs: written whole, read with patience, found by what a person types."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from podbot.config import places
from podbot.errors import ChangesError, Kind
from podbot.runs import records
from podbot.runs.records import Past, Record
from podbot.sandbox import layers
from podbot.sandbox.overlay.launcher import OverlaySandbox
from podbot.sandbox.values import Guarantee

FIRST, SECOND, THIRD = (
    "20250101-080000-aaaa1111",
    "20250102-080000-aabb2222",
    "20250102-090000-cccc3333",
)


PAST = {
    "command": ["make"],
    "started": 1.0,
    "ended": 2.0,
    "exit_status": 0,
    "signal": None,
    "timed_out": False,
    "error": None,
}


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Path) -> Iterator[Path]:
    """Runs of one test alone: no other's records, no other's layers."""
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    root = target.with_name(f"{target.name}-layers")
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(root))
    yield tmp_path / "state"
    if root.exists():
        layers.remove(root)


def record(id: str = FIRST, started: float = 1000.0, **fields: object) -> Record:
    plain = Record(id, None, ("true",), ("/project",), "overlay", "none", started, os.getpid())
    return replace(plain, **fields)  # type: ignore[arg-type]


def test_a_record_comes_back_as_it_was_written() -> None:
    whole = record(
        name="fix tests",
        command=("sh", "-c", "echo 'a\nb'", "caf\udce9", "\u202e"),
        targets=("/a", "/b\udcff"),
        network="host",
        ended=1001.5,
        exit_status=137,
        signal=9,
        timed_out=True,
        error="the sandbox was lost",
        guarantees=(Guarantee("network.none", True, "network namespace"),),
        notes=("works on a copy",),
        earlier=(Past(("make",), 900.0, 950.0, 2),),
    )
    records.write(whole)
    assert records.read(FIRST) == whole


def test_a_record_is_private_and_leaves_no_draft(own_state: Path) -> None:
    records.write(record())
    folder = own_state / "runs"
    assert os.listdir(folder) == [f"{FIRST}.json"]
    assert (folder / f"{FIRST}.json").stat().st_mode & 0o777 == 0o600
    assert own_state.stat().st_mode & 0o777 == 0o700


def test_writing_again_replaces_and_removing_forgets() -> None:
    records.write(record())
    records.write(record(exit_status=3, ended=1002.0), durable=False)
    found = records.read(FIRST)
    assert found is not None and found.exit_status == 3
    records.remove(FIRST)
    records.remove(FIRST)
    assert records.read(FIRST) is None
    assert records.entries() == []


def test_a_killed_writer_leaves_the_old_record_or_the_new_one(own_state: Path) -> None:
    records.write(record(started=1.0))
    code = (
        "import sys; from dataclasses import replace; from podbot.runs import records\n"
        f"old = records.read({FIRST!r}); print('go', flush=True)\n"
        "for n in range(1, 10**9): records.write(replace(old, started=float(n)), durable=False)"
    )
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            for _ in range(20):
                assert records.read(FIRST) is not None
            writer.send_signal(signal.SIGKILL)
        assert records.read(FIRST) is not None
        assert [entry.id for entry in records.entries()] == [FIRST]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: "",
        lambda data: "[1, 2",
        lambda data: "null",
        lambda data: "[]",
        lambda data: json.dumps({**data, "version": 2}),
        lambda data: json.dumps({**data, "id": SECOND}),
        lambda data: json.dumps({**data, "command": "true"}),
        lambda data: json.dumps({**data, "started": "now"}),
        lambda data: json.dumps({**data, "exit_status": [1]}),
        lambda data: json.dumps({**data, "guarantees": [1]}),
        lambda data: json.dumps({**data, "earlier": ["make"]}),
        lambda data: json.dumps({key: data[key] for key in data if key != "targets"}),
        lambda data: "[" * 100_000,
        lambda data: json.dumps({**data, "started": 10**400}),
        lambda data: json.dumps({**data, "started": float("nan")}),
        lambda data: json.dumps({**data, "ended": float("inf")}),
        lambda data: json.dumps({**data, "owner": float("inf")}),
        lambda data: json.dumps(data).replace('"owner": ', '"owner": 1e999, "owner_": '),
        lambda data: json.dumps({**data, "name": "n" * (records.MAX_NAME + 1)}),
        lambda data: json.dumps({**data, "name": "a\x1b[2Jb"}),
        lambda data: json.dumps({**data, "name": "last"}),
        lambda data: json.dumps({**data, "title": "t" * (layers.MAX_TITLE + 1)}),
        lambda data: json.dumps({**data, "command": ["c" * 2 * records.MAX_COMMAND]}),
        lambda data: json.dumps({**data, "earlier": [PAST] * (records.MAX_EARLIER + 1)}),
        lambda data: json.dumps(data) + " " * records.MAX_RECORD,
    ],
)
def test_a_broken_record_is_no_record_and_hides_no_layer(
    spoil: object, own_state: Path, target: Path
) -> None:
    with OverlaySandbox(target) as sandbox:
        sandbox.write("new", b"new")
    assert sandbox.layer is not None
    id = sandbox.layer.id
    records.write(record(id))
    path = own_state / "runs" / f"{id}.json"
    path.write_text(spoil(json.loads(path.read_text())))  # type: ignore[operator]
    assert records.read(id) is None
    (entry,) = records.entries()
    assert (entry.id, entry.record, entry.layer) == (id, None, sandbox.layer)
    assert records.find(id[:12]).layer == sandbox.layer
    assert records.unreadable() == [path]


def test_what_is_written_can_be_read_up_to_every_limit() -> None:
    words = ("w" * (records.MAX_COMMAND - 1), "x", "y" * 10)
    for command in (words, words[::-1], ("",) * (2 * records.MAX_COMMAND), (words[0] + "zz",)):
        past = Past(command, 1.0)
        whole = record(
            name="n" * records.MAX_NAME,
            title="t" * layers.MAX_TITLE,
            command=command,
            earlier=(Past(("make",), 1.0), past),
        )
        records.write(whole)
        assert records.read(FIRST) is not None
    records.write(record(earlier=(Past(("make",), 1.0),) * records.MAX_EARLIER))
    assert records.read(FIRST) is not None
    assert records.unreadable() == []


def test_a_link_or_a_stranger_in_the_folder_is_no_record(own_state: Path) -> None:
    records.write(record())
    folder = own_state / "runs"
    (folder / f"{SECOND}.json").symlink_to(folder / f"{FIRST}.json")
    (folder / "notes.json").write_text("{}")
    (folder / f"{THIRD}.json").mkdir()
    assert [entry.id for entry in records.entries()] == [FIRST]


def test_an_id_can_never_lead_out_of_the_folder() -> None:
    for word in ("../../etc/passwd", "", "a/b", f"{FIRST}/", f"{FIRST}\n"):
        with pytest.raises(ChangesError) as caught:
            records.read(word)
        assert caught.value.kind is Kind.UNKNOWN_ID


def test_a_huge_command_is_kept_in_part() -> None:
    records.write(record(command=("sh", "-c", "x" * (8 << 20), *(["y"] * 100_000))))
    found = records.read(FIRST)
    assert found is not None
    assert found.command[:2] == ("sh", "-c") and found.command[-1] == "…"
    assert sum(map(len, found.command)) < records.MAX_COMMAND + 100


def test_entries_are_layers_and_records_together_newest_first(target: Path) -> None:
    records.write(record(FIRST, 1000.0))
    with OverlaySandbox(target) as sandbox:
        sandbox.write("new", b"new")
        (live, gone) = records.entries()
        assert (live.live, live.status, gone.live, gone.status) == (True, "running", False, "gone")
    records.write(record(SECOND, 5e9))
    assert sandbox.layer is not None
    records.remove(sandbox.layer.id)  # as if its process had been killed
    newest, kept, gone = records.entries()
    assert (newest.id, kept.id, gone.id) == (SECOND, sandbox.layer.id, FIRST)
    assert (kept.status, kept.record, kept.targets) == ("kept", None, (str(target),))
    records.write(record(kept.id, kept.started))
    assert records.find(kept.id).status == "broken off"
    records.write(record(kept.id, kept.started, ended=kept.started + 1, exit_status=0))
    assert records.find(kept.id).status == "ended"


def test_nothing_is_made_by_looking(own_state: Path) -> None:
    assert records.entries() == []
    assert not own_state.exists()
    with pytest.raises(ChangesError) as caught:
        records.find("last")
    assert caught.value.kind is Kind.UNKNOWN_ID and caught.value.remedy


def test_find_takes_an_id_a_prefix_the_last_part_or_a_name() -> None:
    records.write(record(FIRST, 1.0, name="docs"))
    records.write(record(SECOND, 2.0))
    records.write(record(THIRD, 3.0))
    for word, id in {
        FIRST: FIRST,
        "20250101": FIRST,
        "docs": FIRST,
        "aaaa": FIRST,
        "aab": SECOND,
        "20250102-08": SECOND,
        "c": THIRD,
        "last": THIRD,
    }.items():
        assert records.find(word).id == id, word


@pytest.mark.parametrize(("word", "named"), [("20250102", 2), ("aa", 2), ("2025", 3)])
def test_an_ambiguous_word_names_the_candidates(word: str, named: int) -> None:
    for number, id in enumerate((FIRST, SECOND, THIRD)):
        records.write(record(id, float(number)))
    with pytest.raises(ChangesError) as caught:
        records.find(word)
    assert caught.value.kind is Kind.AMBIGUOUS_ID
    words = [entry.called for entry in records.entries()]
    assert sum(word in caught.value.message for word in words) == named


def test_many_candidates_are_not_all_named() -> None:
    for number in range(20):
        records.write(record(f"20250101-0800{number:02}-aaaa1111", 1.0), durable=False)
    with pytest.raises(ChangesError, match="12 more"):
        records.find("2025")


@pytest.mark.parametrize("word", ["", "nobody", "9999", "-", "aaaa11112", "2025\n"])
def test_an_unknown_word_is_refused_with_a_remedy(word: str) -> None:
    records.write(record())
    with pytest.raises(ChangesError) as caught:
        records.find(word)
    assert caught.value.kind is Kind.UNKNOWN_ID and caught.value.remedy


def test_last_prefers_a_run_that_still_has_a_layer(target: Path) -> None:
    with OverlaySandbox(target) as sandbox:
        sandbox.write("new", b"new")
    records.write(record(SECOND, 5e9))
    assert sandbox.layer is not None
    assert records.find("last").id == sandbox.layer.id


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, "a\nb", "a\x1b[31mb", " a", "a ", "\u202eabc", "last", "-x", "a/b", "2025",
     "20250101-080000", "20250101-080000-aaaa1111", "deadbeef", "20250101-x"],
)  # fmt: skip
def test_a_name_that_could_mislead_is_refused(name: str) -> None:
    with pytest.raises(ChangesError) as caught:
        records.check_name(name)
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("name", ["docs", "fix the tests", "été", "issue-3", "v1.2", "abc"])
def test_a_plain_name_is_fine(name: str) -> None:
    records.check_name(name)


def test_a_name_is_given_once() -> None:
    records.write(record(name="docs"))
    with pytest.raises(ChangesError) as caught:
        records.check_name("docs")
    assert caught.value.kind is Kind.EXISTS
    assert "another run is called 'docs' already, over /project" in caught.value.message
    assert "podbot changes show docs" in caught.value.remedy


def test_a_full_disk_or_closed_folder_is_named(own_state: Path) -> None:
    own_state.mkdir(mode=0o700)
    (own_state / "runs").write_text("in the way")
    with pytest.raises(ChangesError) as caught:
        records.write(record())
    assert caught.value.kind is Kind.STATE_FAILED
    assert records.entries() == []
    (own_state / "runs").unlink()
    (own_state / "runs" / f"{FIRST}.json").mkdir(parents=True)
    with pytest.raises(ChangesError) as caught:
        records.write(record())
    assert caught.value.kind is Kind.STATE_FAILED
    with pytest.raises(ChangesError) as caught:
        records.remove(FIRST)
    assert caught.value.kind is Kind.STATE_FAILED


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("PODBOT_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(ChangesError, match="No space left") as caught:
        places.state_folder("runs")
    assert caught.value.kind is Kind.STATE_FAILED and caught.value.remedy is not None
    assert "make room" in caught.value.remedy
