"""`podbot run --route`: an agent's model with a key that stays outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, workplace
from model_service import BACKWARDS, PIECES, REAL, SEARCH, STREAM, Model, model

PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def podbot(project: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PODBOT, *words], cwd=project, capture_output=True, text=True, check=False, stdin=-3,
        env={**os.environ, **variables},
    )  # fmt: skip


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    with model(tmp_path) as made:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        for _ in range(PIECES):
            made.seen.release()
        yield made


def test_a_run_uses_a_model_and_its_key_is_in_nothing_that_is_kept_or_shown(
    project: Path, provider: Model
) -> None:
    words = ("--route", f"anthropic@{provider.base}=env:MY_KEY", "--env", "MY_KEY", "--keep")
    script = f"{STREAM}\nopen('made', 'w').close()\n" + SEARCH
    done = podbot(
        project, "run", *words, "--name", "one", "--json", "--",
        PYTHON, "-I", "-S", "-c", script, BACKWARDS, str(project), MY_KEY=REAL,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:-1] == ["200", *(f"piece{number}" for number in range(PIECES))]
    assert json.loads(lines[-1])[0] == []
    assert provider.keys == [REAL]

    log = podbot(project, "net", "log", "one", "--json").stdout
    shown = podbot(project, "changes", "show", "one", "--json").stdout
    assert json.loads(log)["connections"][0]["rule"] == "route anthropic"
    assert json.loads(shown)["network"] == "allow"
    told = done.stdout + done.stderr + log + shown
    assert REAL not in told and "MY_KEY" not in told


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--route", "anthropic=sk-secret"), "it may hold a key"),
        (("--route", "other=env:A"), "anthropic, gemini, openai"),
        (("--net", "none", "--route", "anthropic"), "contradict each other"),
        (("--net", "host", "--route", "anthropic"), "contradict each other"),
        (("--backend", "local", "--route", "anthropic"), "--route cannot be used"),
        (("--route", "anthropic", "--route", "anthropic=env:B"), "two of this name"),
        (("--route", "anthropic=env:KEY", "--env", "X=sk-secret"), "would bring a key inside"),
    ],
)
def test_what_cannot_be_is_refused_and_no_key_is_repeated(
    project: Path, words: tuple[str, ...], why: str
) -> None:
    done = podbot(project, "run", *words, "--", "touch", "made", KEY="sk-secret")

    assert done.returncode == 125 and why in done.stderr, done.stderr
    assert "sk-secret" not in done.stderr and not (project / "made").exists()


def test_a_key_that_is_not_there_is_said_at_once(project: Path) -> None:
    words = ("--route", "anthropic=env:NO_SUCH_KEY", "--route", "openai=file:no-such-file")
    done = podbot(project, "run", *words, "--", "true")

    assert done.returncode == 0
    assert "note: --route anthropic: there is no variable NO_SUCH_KEY here" in done.stderr
    assert f"note: --route openai: there is no file {project}/no-such-file here" in done.stderr
