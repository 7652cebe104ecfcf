"""The programs podbot itself needs inside are found, whatever name they were called by."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import PYTHON

import podbot
from podbot.errors import Kind, LaunchError, SandboxError
from podbot.sandbox import Policy
from podbot.sandbox.overlay import _failures, _programs
from podbot.sandbox.overlay.launcher import OverlaySandbox

SOURCE = str(Path(podbot.__file__).parent.parent)
OPEN = """
import sys
sys.path.insert(0, sys.argv[1])
from podbot.sandbox.overlay.launcher import OverlaySandbox
with OverlaySandbox(sys.argv[2], discard=True) as sandbox:
    sandbox.write("needle.txt", b"needle")
    print(sandbox.python("6 * 7").value, len(sandbox.grep("needle").matches))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder below /tmp, which every sandbox has for itself."""
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/tmp") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def venv(place: Path) -> Path:
    """A virtual environment there, with a ripgrep beside its interpreter, and ways to it."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", place / "venv"], check=True)
    script = place / "venv" / "bin" / "rg"
    script.write_text("#!/bin/sh\necho no ripgrep here >&2\nexit 2\n")
    script.chmod(0o755)
    (place / "aside").mkdir()
    (place / "way").symlink_to("venv")
    (place / "chained").mkdir()
    (place / "chained" / "bin").mkdir()
    (place / "chained" / "bin" / "python").symlink_to(place / "aside" / "../venv/bin/python")
    (place / "chained" / "pyvenv.cfg").write_text((place / "venv" / "pyvenv.cfg").read_text())
    return place / "venv"


@pytest.mark.parametrize(
    "name", ["venv/bin/python", "way/bin/python", "aside/../venv/bin/python", "chained/bin/python"]
)
def test_an_interpreter_below_tmp_opens_a_sandbox_by_any_name(
    venv: Path, target: Path, name: str
) -> None:
    (venv / "bin" / "rg").unlink()
    argv = [str(venv.parent / name), "-c", OPEN, SOURCE, str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("42 1\n", "")


def test_an_interpreter_called_from_beside_its_folder_opens_a_sandbox(
    venv: Path, target: Path
) -> None:
    argv = ["../venv/bin/python", "-c", OPEN.replace("len(sandbox.grep", "0 * len(sandbox.stat")]
    argv[-1] = OPEN.split("print", maxsplit=1)[0] + "print(sandbox.python('6 * 7').value)\n"
    argv += [SOURCE, str(target)]
    cwd = venv.parent / "aside"
    done = subprocess.run(argv, capture_output=True, text=True, cwd=cwd, check=False)

    assert (done.stdout, done.stderr) == ("42\n", "")


def test_the_kernels_interpreter_may_be_named_through_a_folder_that_is_left_again(
    venv: Path, target: Path
) -> None:
    for name in ("aside/../venv/bin/python", "way/bin/python", "../" * 9 + PYTHON[1:]):
        policy = Policy(python=f"{venv.parent}/{name}")
        with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
            assert sandbox.python("6 * 7").value == "42"


def test_nothing_beside_the_programs_is_shown(venv: Path, target: Path) -> None:
    (venv.parent / "secret").write_text("secret")
    (venv.parent / "aside" / "secret").write_text("secret")
    policy = Policy(python=f"{venv.parent}/aside/../venv/bin/python")
    with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
        assert sandbox.exec(["find", venv.parent, "-name", "secret"]).stdout == ""


def test_what_lies_elsewhere_is_not_shown_again(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr(sys, "executable", f"{place}/../..{PYTHON}")
    monkeypatch.setattr(sys, "prefix", f"{place}/../../usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")

    shown, _ = _programs.needed(None)

    assert not any(os.path.normpath(place) in path for path in shown)
    assert set(shown.values()).isdisjoint({"/usr", "/"})


def test_a_program_of_the_hosts_below_tmp_is_refused_with_that_cause(
    place: Path, target: Path
) -> None:
    tool = place / "tool"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)

    with OverlaySandbox(target, discard=True) as sandbox:
        for start in (sandbox.exec, sandbox.spawn):
            with pytest.raises(SandboxError) as caught:
                start([str(tool)])
            assert caught.value.kind is Kind.COMMAND_NOT_FOUND
            assert "/tmp is the sandbox's own" in caught.value.message
        with pytest.raises(SandboxError) as other:
            sandbox.exec([f"{target}/missing"])
    assert "sandbox's own" not in other.value.message


@pytest.mark.parametrize("how", ["found on PATH", "linked to", "named by a script"])
def test_a_program_below_tmp_is_named_as_the_cause_whatever_led_there(
    place: Path, target: Path, how: str
) -> None:
    tool = place / "tool"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    (target / "way").symlink_to(tool)
    (target / "script").write_text(f"#! {tool} -x\n")
    (target / "script").chmod(0o755)
    command = {"found on PATH": "tool", "linked to": "./way", "named by a script": "./script"}[how]

    with OverlaySandbox(target, discard=True) as sandbox:
        for start in (sandbox.exec, sandbox.spawn):
            with pytest.raises(SandboxError) as caught:
                start([command], env={"PATH": f"/usr/bin:{place}"})
            assert caught.value.kind is Kind.COMMAND_NOT_FOUND
            assert f"({tool}: /tmp is the sandbox's own" in caught.value.message


def test_podbot_inside_podbot_names_that_as_the_cause(target: Path) -> None:
    # In the target, as this checkout may lie where a sandbox has folders of its own.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(podbot.__file__).parent, target / "podbot", ignore=ignored)
    with OverlaySandbox(target, discard=True) as sandbox:
        for layers in ("", "/tmp/layers"):
            environment = {"PODBOT_LAYERS": layers} if layers else {}
            argv = [PYTHON, "-c", OPEN, str(target), str(target)]
            found = sandbox.exec(argv, env=environment)
            assert "podbot runs inside a sandbox of podbot's" in found.stderr, found
            assert '"local" backend will do' in found.stderr


def test_outside_of_podbot_a_failure_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODBOT_JOB", raising=False)
    error = LaunchError("no", kind=Kind.USERNS_DENIED)
    assert _failures.nested(error) is error
    monkeypatch.setenv("PODBOT_JOB", "1")
    assert _failures.nested(error).kind is Kind.USERNS_DENIED
    invalid = LaunchError("no", kind=Kind.INVALID)
    assert _failures.nested(invalid) is invalid
