"""The verbs of the library that take a run take whatever a person would call it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import ran, short, workplace

from podbot import api, changes, runs
from podbot.changes.applying import journal
from podbot.errors import ChangesError, Kind
from podbot.runs import records
from podbot.sandbox import OverlaySandbox, layers


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def applied(project: Path) -> str:
    id = ran(project, "echo new > numbers", name="nightly")
    layer = changes.find("nightly").layer
    assert layer is not None
    changes.apply_changes(changes.read(layer))
    return id


def test_a_run_is_undone_by_whatever_it_is_called(project: Path) -> None:
    id = ran(project, "echo new > numbers")
    layer = layers.get(id)
    assert layer is not None
    for word in (id, short(id), id[:-3], "last", "an application"):
        made = changes.apply_changes(changes.read(layer))
        assert changes.undo_changes(made.id if word == "an application" else word).restored
        assert (project / "numbers").read_text() != "new\n"
    assert len(changes.applications(short(id))) == 5


def test_a_name_is_as_good_as_an_id(project: Path) -> None:
    applied(project)
    assert [each.undone for each in changes.applications("nightly")] == [False]
    assert changes.undo_changes("nightly").restored == (f"{project}/numbers",)


def test_a_run_whose_record_is_gone_is_undone_by_its_id(project: Path) -> None:
    id = applied(project)
    records.remove(id)
    layer = layers.get(id)
    assert layer is not None
    layers.remove(layer.path)
    assert changes.undo_changes(id).restored


def test_a_name_that_nobody_has_is_told_with_the_nearest(project: Path) -> None:
    applied(project)
    for verb in (changes.undo_changes, changes.applications, changes.discard_changes):
        with pytest.raises(ChangesError, match="did you mean 'nightly'") as caught:
            verb("nigthly")
        assert caught.value.kind is Kind.UNKNOWN_ID


def test_a_discard_removes_layer_record_and_journals(project: Path) -> None:
    id = applied(project)
    api.discard_changes("nightly")
    assert layers.get(id) is None
    assert records.read(id) is None
    assert [own for own in journal.found() if own.layer_id == id] == []
    assert (project / "numbers").read_text() == "new\n"


def test_a_run_that_works_is_not_discarded(project: Path) -> None:
    with OverlaySandbox(project, discard=True) as sandbox:
        assert sandbox.layer is not None
        with pytest.raises(ChangesError) as caught:
            changes.discard_changes(sandbox.layer.id)
        assert caught.value.kind is Kind.IN_USE
        assert sandbox.exec(["true"]).ok


def test_runs_and_changes_have_the_same_names_for_it() -> None:
    shared = set(runs.__all__) & set(changes.__all__)
    assert shared == set(runs.__all__) - {"LaunchRequest", "Past", "Run"}
    for name in shared:
        assert getattr(changes, name) is getattr(runs, name)
