"""What a program gives to a review: words of which there are a few, and one path for a list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import ran

from podbot import changes, review
from podbot.errors import ChangesError, Kind

SCRIPT = "echo 1 > src/new; echo 2 > numbers; echo x > .envrc; echo 3 > s"
TYPO: Any = "skipp"


@pytest.mark.parametrize(
    "act",
    [
        lambda found: found.apply(["numbers"], on_conflict=TYPO),
        lambda found: found.apply(found.pick(["numbers"]), on_conflict=TYPO),
        lambda found: changes.apply_changes(found.changes, only=["numbers"], on_conflict=TYPO),
    ],
)
def test_a_misspelt_word_does_not_overwrite_the_host(
    project: Path, act: Callable[[review.Review], object]
) -> None:
    found = review.open(ran(project, SCRIPT))
    (project / "numbers").write_text("the host's own\n")

    with pytest.raises(ChangesError) as caught:
        act(found)

    assert caught.value.kind is Kind.INVALID
    assert (project / "numbers").read_text() == "the host's own\n"


def test_a_misspelt_word_undoes_nothing(project: Path) -> None:
    found = review.open(ran(project, SCRIPT))
    found.apply(["numbers", "src"])
    (project / "numbers").write_text("the host's own\n")

    for undo in (found.undo, lambda **given: changes.undo_changes(found.entry.id, **given)):
        with pytest.raises(ChangesError) as caught:
            undo(on_conflict=TYPO)
        assert caught.value.kind is Kind.INVALID

    assert (project / "numbers").read_text() == "the host's own\n"
    assert (project / "src" / "new").exists()


def test_one_path_is_one_path(project: Path) -> None:
    found = review.open(ran(project, SCRIPT))

    assert [change.path for change in found.select("src")] == ["src/new"]
    assert [change.path for change in found.pick("src").changes] == ["src/new"]
    assert [change.path for change in changes.select_changes(found.changes, "src")] == ["src/new"]
    for files in (found.diff("src", "numbers"), found.diff(["src", "numbers"])):
        assert [file.change.path for file in files] == ["numbers", "src/new"]
    assert found.consent(".envrc").paths == [f"{project}/.envrc"]
    assert [change.path for change in found.apply("src").changed] == ["src/new"]
    assert found.undo("src").restored == (f"{project}/src/new",)
    applied = changes.apply_changes(found.changes, only=".envrc", allow_flagged=".envrc")
    assert [change.path for change in applied.changed] == [".envrc"]
    assert changes.undo_changes(found.entry.id, only=".envrc").restored == (f"{project}/.envrc",)
    saved = found.save(project.parent / "work.tar", "src")
    assert saved.changes_count == 1
    again = review.load(saved.file, str(project))
    assert again.entry.targets == (str(project),)
    assert [change.path for change in found.apply(".envrc", allow=".envrc").changed] == [".envrc"]


def test_an_empty_path_does_not_mean_everything(project: Path) -> None:
    found = review.open(ran(project, SCRIPT))
    for act in (found.select, found.pick, found.apply):
        with pytest.raises(ChangesError) as caught:
            act("")
        assert caught.value.kind is Kind.NOTHING_SELECTED


def test_a_path_that_holds_a_flagged_one_does_not_allow_it(project: Path) -> None:
    found = review.open(ran(project, SCRIPT))
    with pytest.raises(ChangesError) as caught:
        changes.apply_changes(found.changes, only=".envrc", allow_flagged="old/.envrc")
    assert caught.value.kind is Kind.FLAGGED
    assert not (project / ".envrc").exists()
