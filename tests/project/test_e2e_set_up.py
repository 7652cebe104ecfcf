"""The set-up of the end-to-end tests says what is missing, and never passes for nothing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "e2e" / "set_up.py"


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program, in a folder of its own and without privileges."""
    spec = importlib.util.spec_from_file_location("set_up_alone", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv(module.PLACE_VARIABLE, str(tmp_path / "place"))
    monkeypatch.setattr(module, "is_root", lambda: False)
    return module


def test_without_podman_and_without_root_it_fails_and_says_what_to_install(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(set_up, "there", lambda program: program != "podman")

    assert set_up.main(["run"]) == 1

    told = capsys.readouterr().err
    assert "podman" in told and "sudo apt-get install podman" in told and "as root" in told


def test_an_image_that_cannot_be_made_is_a_failure(
    set_up: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(set_up, "there", lambda program: program != "mmdebstrap")

    assert set_up.main(["prepare"]) == 1
    assert "mmdebstrap" in capsys.readouterr().err
    settings = tmp_path / "place" / "podman"
    assert str(settings) in (settings / "storage.conf").read_text()
    assert 'runtime = "runsc"' in (settings / "runsc.conf").read_text()


def test_a_run_that_found_no_test_is_no_success(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "prepare", lambda: None)

    assert set_up.main(["run", "-q", "--ignore-glob=*/test_*"]) == 5


def test_without_a_word_it_explains_itself() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "make test-e2e" in done.stderr
