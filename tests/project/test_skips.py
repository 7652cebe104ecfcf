"""In continuous integration a test that skips without an excuse fails the run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from suites import suite


def the_conftest() -> ModuleType:
    """The one of all tests, whatever else is called conftest."""
    place = Path(__file__).parents[1] / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_of_all", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


is_allowed = the_conftest().is_allowed


def run(folder: Path, test: str, *options: str, ci: str = "1") -> subprocess.CompletedProcess[str]:
    return suite(folder, test, "-p", "no:hypothesispytest", *options, PODBOT_CI=ci)


SKIPS = """
import pytest

def test_passes():
    pass

@pytest.mark.skip(reason="I felt like it")
def test_skips():
    pass
"""


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_an_unexcused_skip_fails_the_run_and_is_named(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run(tmp_path, SKIPS, *options)

    assert done.returncode == 1, done.stdout
    assert "test_some.py::test_skips: I felt like it" in done.stdout


def test_a_module_that_skips_itself_is_noticed(tmp_path: Path) -> None:
    test = "import pytest\npytest.skip('not today', allow_module_level=True)\n"

    done = run(tmp_path, test)

    assert done.returncode == 1, done.stdout
    assert "not today" in done.stdout


def test_outside_of_continuous_integration_a_skip_is_only_a_skip(tmp_path: Path) -> None:
    assert run(tmp_path, SKIPS, ci="").returncode == 0


def test_a_test_known_to_fail_is_no_skip(tmp_path: Path) -> None:
    test = "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_it(): assert 0\n"

    assert run(tmp_path, test).returncode == 0


def test_only_root_is_an_excuse_for_others_alone() -> None:
    assert is_allowed("only root can make a device node") == (os.geteuid() != 0)
    assert not is_allowed("only root")
    assert not is_allowed("/tmp is not writable")
    assert not is_allowed("sh is not installed")
    assert is_allowed("no-such-program is not installed")
