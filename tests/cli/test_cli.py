"""The command as a person meets it: run as a program wherever that makes a difference."""

import importlib.metadata
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import podbot
from podbot.cli import COMMANDS, main
from podbot.cli.doctor import apparmor_profile, table
from podbot.sandbox.probe import Finding

PODBOT = [sys.executable, "-c", "import sys; from podbot.cli import main; sys.exit(main())"]
SOURCE = str(Path(podbot.__file__).parent.parent)


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"podbot {podbot.__version__}\n"
    assert importlib.metadata.version("podbot") == podbot.__version__


def test_version_loads_nothing_that_takes_time() -> None:
    # -S keeps coverage and other start-up hooks from loading modules of their own.
    script = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); from podbot.cli import main; "
        "main(['--version']); print(*sorted(sys.modules))"
    )
    out = subprocess.check_output([sys.executable, "-I", "-S", "-c", script], text=True)
    loaded = set(out.splitlines()[1].split())
    assert not loaded & {"argparse", "typing", "re", "dataclasses", "podbot.sandbox"}


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(name in out and line in out for name, (_, line) in COMMANDS.items())


@pytest.mark.parametrize("words", [[], ["dokter"], ["doctor", "--jsn"], ["--bogus"]])
def test_wrong_usage_exits_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "usage: podbot" in capsys.readouterr().err


def test_every_listed_name_of_the_package_is_there() -> None:
    listed = set(podbot.__all__) - {"__version__"}
    assert listed == {name for names in podbot._HOMES.values() for name in names.split()}
    assert all(getattr(podbot, name).__name__ == name for name in listed)
    assert set(podbot.__all__) <= set(dir(podbot))


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Sandbocks"):
        _ = podbot.Sandbocks  # type: ignore[attr-defined]


def test_doctor_prints_its_findings_as_json() -> None:
    done = subprocess.run([*PODBOT, "doctor", "--json"], capture_output=True, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["overlay_can_run"] else 1)
    assert {"name", "state", "detail", "fix", "required"} == set(report["findings"][0])


def test_the_table_is_aligned_and_puts_the_remedy_below() -> None:
    findings = (
        Finding("kernel", "found", "6.1", None, required=True),
        Finding("user namespaces", "missing", "refused", "sudo sysctl …", required=True),
    )
    assert table(findings).splitlines() == [
        "kernel           found    6.1",
        "user namespaces  missing  refused",
        "                     fix  sudo sysctl …",
        "",
        "The overlay backend cannot run here; it lacks: user namespaces.",
    ]


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_without_no_color(no_color: str, coloured: bool) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "NO_COLOR": no_color}
    child = subprocess.Popen([*PODBOT, "doctor"], stdout=theirs, env=env)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:
        pass  # Linux reports the end of a terminal as EIO
    os.close(ours)
    child.wait()
    assert b"kernel" in shown
    assert (b"\x1b[" in shown) is coloured


def test_a_reader_that_leaves_early_causes_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*PODBOT, "doctor"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> tuple[Finding, ...]:
        raise KeyboardInterrupt

    monkeypatch.setattr("podbot.cli.doctor.probe", interrupted)
    assert main(["doctor"]) == 130


def test_the_apparmor_profile_names_this_interpreter_and_how_to_load_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--apparmor"]) == 0
    out = capsys.readouterr().out
    assert f'profile podbot "{os.path.realpath(sys.executable)}" flags=(unconfined) {{' in out
    assert "  userns," in out
    assert out.splitlines()[-2:] == [
        "#   podbot doctor --apparmor | sudo tee /etc/apparmor.d/podbot",
        "#   sudo apparmor_parser -r /etc/apparmor.d/podbot",
    ]


def test_the_apparmor_profile_takes_an_odd_path_literally() -> None:
    profile = apparmor_profile('/opt/a "b"/{py}*', "/opt/my tools/podbot")
    assert r'profile podbot "/opt/a \"b\"/\{py\}\*" flags' in profile
    assert "#   '/opt/my tools/podbot' doctor --apparmor |" in profile


def test_without_a_word_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    shown = capsys.readouterr().err
    assert "podbot run -- make test" in shown
    assert "list the containers podbot made" in shown
