"""What errors say to do next, in the calls of a program: never what somebody would type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import ran

from podbot import api, changes, review
from podbot.cli import main, remedies
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers

SCRIPT = "echo 1 > src/new; echo 2 > numbers; echo x > .envrc"
OLD = "20300101-000000-00000000"
Found = review.Review


def error_of(act: Callable[[], object]) -> ChangesError:
    with pytest.raises(ChangesError) as caught:
        act()
    return caught.value


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda found: found.apply(), Kind.FLAGGED),
        (lambda found: found.apply(["nowhere"]), Kind.NOTHING_SELECTED),
        (lambda found: found.apply(allow=["nowhere"]), Kind.NOTHING_SELECTED),
        (lambda found: found.pick(hunks={"nowhere": [0]}), Kind.NOTHING_SELECTED),
        (lambda found: found.undo(), Kind.NOTHING_TO_UNDO),
        (lambda found: review.open("none-such"), Kind.UNKNOWN_ID),
        (lambda found: review.open(OLD), Kind.UNKNOWN_ID),
        (lambda found: review.open("last", here="/usr"), Kind.UNKNOWN_ID),
        (
            lambda found: review.load(found.save(f"{found.here}.tar").file, within="/usr"),
            Kind.TARGET_REFUSED,
        ),
        (lambda found: review.load(found.entry.targets[0] + "/numbers"), Kind.BAD_ARCHIVE),
        (lambda found: (found.discard(), found.changes), Kind.UNKNOWN_ID),
    ],
)
def test_a_remedy_speaks_of_calls(
    project: Path, act: Callable[[Found], object], kind: Kind
) -> None:
    found = review.open(ran(project, SCRIPT), here=project)

    error = error_of(lambda: act(found))

    assert error.kind is kind
    remedy = error.remedy or ""
    assert not re.search(r"podbot (changes|run)|--\w|shell|PATH", remedy), remedy
    calls = (Found.apply, Found.undo, Found.pick, review.open, review.load)
    names = {name for call in calls for name in inspect.signature(call).parameters}
    assert set(re.findall(r"(\w+)=", remedy)) <= names, remedy


def test_a_remedy_of_the_library_has_the_parameter_it_names(project: Path) -> None:
    found = review.open(ran(project, SCRIPT))
    error = error_of(lambda: changes.apply_changes(found.changes))
    assert "allow_flagged=" in (error.remedy or "")
    assert "(allow=" in (error_of(found.apply).remedy or "")


def test_a_look_at_what_was_discarded_says_that(project: Path) -> None:
    found, other = review.open(ran(project, SCRIPT)), review.open(ran(project, SCRIPT))
    found.discard()
    assert other.entry.layer is not None
    layers.remove(other.entry.layer.path)

    for act in (lambda: found.changes, lambda: found.summary, found.apply, found.data):
        assert "the run was discarded" in error_of(act).message
    assert "was discarded, or something removed its layer" in error_of(other.data).message


def test_a_run_that_changed_nothing_is_told_as_that(project: Path) -> None:
    outcome = api.run(api.RunRequest(("true",), targets=(project,)))

    assert not outcome.changed
    assert "it changed nothing" in error_of(lambda: review.open(outcome.id)).message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "none-such"], "`podbot changes list --all` names those there are"),
        (["apply", "last", "nowhere"], "(quoted, so that the shell leaves it alone)"),
        (["load", "numbers"], "load only what `podbot changes save` wrote"),
    ],
)
def test_who_types_is_told_what_to_type(
    project: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    ran(project, SCRIPT)
    assert main(["changes", *words]) == 2
    assert said in capfd.readouterr().err


def test_saving_is_told_as_a_command() -> None:
    from podbot.changes import next_steps

    said = remedies.in_commands(next_steps.save(OLD))
    assert said == f"save the changes: podbot changes save {OLD} FILE.tar"
