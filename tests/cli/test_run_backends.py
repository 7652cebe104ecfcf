"""`podbot run` and `podbot shell` on other backends: on nothing at all, and on a package's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import own_project
from screen import PODBOT, Screen

from podbot import api
from podbot.api import LaunchRequest, Streams
from podbot.cli.run import Saying, worth_saying
from podbot.errors import ContainerError, Kind, PodbotError
from podbot.runs import records

HERE = Path(__file__).parents[1]
QUIET = Streams(stdin=os.open(os.devnull, os.O_RDONLY), stdout=os.open(os.devnull, os.O_WRONLY))


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project that is the current folder, with runs of its own."""
    with own_project({"old": "old\n"}) as made:
        (made / "sub").mkdir()
        monkeypatch.chdir(made)
        yield made


@pytest.fixture
def plugin(tmp_path: Path, project: Path) -> dict[str, str]:
    """The environment of a machine where a package with two backends is installed."""
    site = tmp_path / "site"
    facts = site / "toys-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[podbot.sandbox]\npiped = piped:PipedLauncher\nkeeping = keeping:KeepingLauncher\n"
    )
    (site / "piped.py").write_text((HERE / "piped.py").read_text())
    (site / "keeping.py").write_text(
        "from podbot.sandbox.overlay.launcher import OverlayLauncher\n"
        "class KeepingLauncher(OverlayLauncher):\n    name = 'keeping'\n"
    )
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def podbot(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*PODBOT, *words]
    options = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]  # options vary
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


# Nothing at all


def test_local_works_on_the_folder_itself_and_says_so_loudly(project: Path) -> None:
    done = podbot("run", "--backend", "local", "--", "sh", "-c", "echo new > new; pwd; exit 5")
    assert (done.returncode, done.stdout) == (5, f"{project}\n")
    assert done.stderr == (
        "podbot run: NOTHING IS ISOLATED (--backend local)\n"
        f"  the command works on {project} itself, as you, with all you may do\n"
        "  nothing is kept apart: there will be nothing to review or undo\n"
    )
    assert (project / "new").read_text() == "new\n"
    assert records.entries() == []


def test_local_gets_its_variables_and_pipes(project: Path) -> None:
    done = podbot(
        "run", "--backend", "local", "--env", "SET=so", "--", "sh", "-c", "cat; echo $SET; cd sub",
        stdin=None, input="typed\n",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "typed\nso\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--in", "last"), ("--name", "x"), ("--net", "none"), ("--net", "host"), ("--hide", "/etc"),
        ("--show", "/etc"), ("--image", "debian"), ("--keep",), ("--yes",), ("--discard",),
    ],
)  # fmt: skip
def test_local_refuses_what_it_would_not_keep_to(project: Path, options: tuple[str, ...]) -> None:
    done = podbot("run", "--backend", "local", *options, "--", "touch", "ran")
    assert done.returncode == 125
    assert f"{options[0]} cannot be used" in done.stderr
    assert not (project / "ran").exists()


def test_local_as_data_names_its_backend(project: Path) -> None:
    done = podbot("run", "--json", "--backend", "local", "--", "false")
    told = json.loads(done.stderr)
    assert (done.returncode, told["backend"], told["outcome"]) == (1, "local", "nothing")


def test_files_in_memory_run_nothing(project: Path) -> None:
    with pytest.raises(PodbotError, match="runs no commands") as caught:
        api.run(LaunchRequest(("true",), backend="memory"), QUIET)
    assert caught.value.kind is Kind.UNSUPPORTED


def test_a_local_shell_says_so_in_its_prompt(project: Path) -> None:
    command = [*PODBOT, "shell", "--backend", "local"]
    with Screen(command, cwd=project, env={"SHELL": "/bin/sh"}) as screen:
        screen.see("NOTHING IS ISOLATED")
        screen.see("(not isolated)")
        screen.type("touch made; exit\r")
        assert screen.end() == 0
    assert (project / "made").exists()


# Containers: see tests/container/test_container_runs.py, too


def test_the_engine_that_is_missing_is_said(project: Path) -> None:
    done = podbot(
        "run", "--backend", "podman", "--", "true",
        env={**os.environ, "PODBOT_ENGINE_SOCKET": "unix:///no/such.sock"},
    )  # fmt: skip
    assert done.returncode == 125
    assert "/no/such.sock" in done.stderr and "remedy" in done.stderr


def test_without_an_engine_the_backend_that_needs_none_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = Saying("run", None, quiet=False)
    said.failed(ContainerError("none was found", kind=Kind.NO_ENGINE, remedy="install Podman"))
    *_, remedy, more = capsys.readouterr().err.splitlines()
    assert remedy == "  remedy: install Podman"
    assert more == "          or leave out --backend: the overlay needs no engine and no image"
    said.failed(ContainerError("it is gone", kind=Kind.IMAGE_NOT_FOUND, remedy="pull it"))
    assert "overlay" not in capsys.readouterr().err


def test_a_limit_that_nobody_asked_for_is_no_note_at_each_start() -> None:
    notes = (
        "the limit on cpu is not enforced: a rootless engine cannot on control groups of version 1",
        "works on a copy, because it must",
    )
    assert list(worth_saying(notes)) == ["works on a copy, because it must"]


# A package's


def test_a_backend_of_a_package_runs_commands(plugin: dict[str, str], project: Path) -> None:
    done = podbot("run", "--backend", "piped", "--", "sh", "-c", "cat; exit 4",
                  stdin=None, input="through\n", env=plugin)  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "through\n")
    assert "the backend piped keeps no changes apart" in done.stderr


@pytest.mark.parametrize("option", ["--keep", "--yes", "--discard"])
def test_a_backend_that_keeps_nothing_apart_decides_nothing(
    plugin: dict[str, str], project: Path, option: str
) -> None:
    done = podbot(
        "run", "--backend", "piped", option, "--", "touch", str(project / "x"), env=plugin
    )
    assert done.returncode == 125
    assert "keeps no changes apart" in done.stderr and option[2:] in done.stderr
    assert not (project / "x").exists()


def test_a_backend_of_a_package_refuses_what_it_has_no_word_for(
    plugin: dict[str, str], project: Path
) -> None:
    for words, said in (
        (("--target", "."), "has no option 'target'"),
        (("--image", "x"), "has no option 'image'"),
        (("--name", "x"), "does not support name"),
    ):
        done = podbot("run", "--backend", "piped", *words, "--", "true", env=plugin)
        assert done.returncode == 125, done.stderr
        assert said in done.stderr


def test_what_a_backend_of_a_package_keeps_apart_is_reviewed(
    plugin: dict[str, str], project: Path
) -> None:
    done = podbot(
        "run", "--backend", "keeping", "--keep", "--name", "mine", "--", "touch", "new", env=plugin
    )
    assert done.returncode == 0, done.stderr
    assert not (project / "new").exists()
    record = records.find("mine").record
    assert record is not None and record.backend == "keeping"


def test_the_backends_are_offered_and_those_of_packages_too(plugin: dict[str, str]) -> None:
    done = podbot("completion", "bash", "--", "run", "--backend", "", env=plugin)
    offered = [line.partition("\t")[0] for line in done.stdout.splitlines()[1:]]
    assert offered == ["overlay", "container", "local", "keeping", "piped"]
    done = podbot("completion", "bash", "--", "shell", "--backend=", "", env=plugin)
    assert done.returncode == 0
