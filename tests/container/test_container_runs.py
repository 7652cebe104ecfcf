"""`podbot run --backend container`: reviewed, applied and gone on in as a run in an overlay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import own_project
from small_engine import SmallEngine

from podbot import api, changes
from podbot.api import LaunchRequest, Streams
from podbot.cli import shell
from podbot.errors import ConfigError
from podbot.runs import records
from podbot.sandbox import layers
from podbot.sandbox.container import _engines

QUIET = Streams(stdin=os.open(os.devnull, os.O_RDONLY), stdout=os.open(os.devnull, os.O_WRONLY))


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project that is the current folder, with runs of its own."""
    with own_project({"old": "old\n"}) as made:
        (made / "sub").mkdir()
        monkeypatch.chdir(made)
        yield made


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, project: Path) -> Iterator[SmallEngine]:
    """The engine that a container finds."""
    made = SmallEngine()
    monkeypatch.setattr(_engines, "connect", lambda given: made)
    yield made
    assert not made.containers.all, "a container was left behind"
    made.close()


def in_container(script: str, **options: object) -> api.RunOutcome:
    request = LaunchRequest(
        ("sh", "-c", script),
        backend="container",
        image="image",
        **options,  # type: ignore[arg-type]
    )
    return api.run(request, QUIET)


def test_a_container_run_is_reviewed_as_any_other(engine: SmallEngine, project: Path) -> None:
    outcome = in_container("echo new > new; echo more >> old; exit 3", name="boxed")

    assert outcome.exit_status == 3
    assert (project / "old").read_text() == "old\n"
    entry = records.find("boxed")
    assert entry.record is not None and entry.layer == outcome.layer
    assert (entry.record.backend, entry.record.exit_status) == ("container", 3)
    assert entry.record.targets == (str(project),)
    assert entry.layer is not None
    found = changes.read(entry.layer)
    assert {change.path: change.kind.value for change in found} == {
        "new": "added", "old": "modified",
    }  # fmt: skip
    changes.apply_changes(found)
    assert (project / "old").read_text() == "old\nmore\n"
    changes.undo_changes("boxed")
    assert (project / "old").read_text() == "old\n"


def test_a_container_run_that_changes_nothing_is_forgotten(engine: SmallEngine) -> None:
    outcome = in_container("cat old")
    assert (outcome.exit_status, outcome.layer) == (0, None)
    assert records.entries() == []
    assert layers.found() == []


def test_it_starts_in_the_folder_that_is_the_current_one(
    engine: SmallEngine, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "sub")
    outcome = in_container("pwd > here; echo $PODBOT_RUN >> here", targets=(project,))
    assert outcome.layer is not None
    assert (outcome.layer.upper(0) / "sub" / "here").read_text() == (
        f"/workspace/sub\n{outcome.id}\n"
    )


def test_a_container_run_is_gone_on_in_by_the_backend_that_made_it(
    engine: SmallEngine, project: Path
) -> None:
    first = in_container("echo 1 > one", name="first")
    request = LaunchRequest(("sh", "-c", "cat one > two"), continue_in="first", image="image")

    outcome = api.run(request, QUIET)

    assert outcome.id == first.id and outcome.layer is not None
    assert outcome.record.backend == "container"
    assert (outcome.layer.upper(0) / "two").read_text() == "1\n"
    assert [past.command for past in outcome.record.earlier] == [("sh", "-c", "echo 1 > one")]


def test_what_a_container_run_changed_is_thrown_away_on_request(
    engine: SmallEngine, project: Path
) -> None:
    assert in_container("echo 1 > one", discard=True).layer is None
    assert layers.found() == [] and records.entries() == []


def test_a_container_that_goes_on_keeps_what_it_changes(engine: SmallEngine) -> None:
    in_container("echo 1 > one", name="first")
    with pytest.raises(ConfigError, match="keeps what it changes"):
        in_container("echo 2 > two", continue_in="first", discard=True)


def test_what_makes_no_command_of_a_word_ends_as_everywhere(engine: SmallEngine) -> None:
    outcome = api.run(LaunchRequest(("no-such",), backend="podman", image="image"), QUIET)
    assert outcome.exit_status == 127
    assert outcome.problem is not None and "no-such" in outcome.problem


def test_a_shell_inside_is_one_that_the_image_has(engine: SmallEngine) -> None:
    outcome = in_container("echo 1 > one", name="boxed")
    assert outcome.layer is not None
    options = shell.Options(continue_in="boxed")
    assert not shell._is_here(options)
    assert not shell._is_here(shell.Options(backend="container"))
    assert shell._is_here(shell.Options())
    request = LaunchRequest(shell.INSIDE, continue_in="boxed", image="image")
    assert api.run(request, QUIET).exit_status == 0


def test_its_title_is_in_the_list(engine: SmallEngine) -> None:
    in_container("echo 1 > one", title="try the upgrade")
    (entry,) = records.entries()
    assert entry.made_by == "try the upgrade"
