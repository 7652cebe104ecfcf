"""`podbot run` and `podbot shell`: what they ask of a sandbox, and what is left of a run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from screen import PODBOT, Screen, by_marker, signal_of, state, until

from podbot import api
from podbot.api import RunRequest, Streams
from podbot.cli import main, run_options
from podbot.cli import run as running
from podbot.cli import shell as shelling
from podbot.config import places
from podbot.errors import ChangesError, Kind, LaunchError
from podbot.runs import records
from podbot.runs.records import Entry
from podbot.sandbox import layers

QUIET = Streams(stdin=os.open(os.devnull, os.O_RDONLY), stdout=os.open(os.devnull, os.O_WRONLY))


def folder(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"podbot-{prefix}-", dir="/var/tmp")).resolve()


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project that is the current folder, with runs of its own."""
    path, root, state_root = folder("target"), folder("layers"), folder("state")
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(root))
    monkeypatch.setenv(places.STATE_VARIABLE, str(state_root))
    (path / "sub").mkdir()
    (path / "old").write_text("old\n")
    monkeypatch.chdir(path)
    yield path
    for each in (path, root, state_root):
        layers.remove(each)


def podbot(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*PODBOT, *words]
    options = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]  # options vary
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


def sh(script: str, **options: object) -> api.RunOutcome:
    """A script through the library, nothing shown."""
    return api.run(RunRequest(("sh", "-c", script), **options), QUIET)  # type: ignore[arg-type]


# Through the library


def test_changes_stay_apart_and_the_run_is_on_record(target: Path) -> None:
    seen: list[records.Record] = []
    request = RunRequest(("sh", "-c", "echo new > new; rm old; exit 3"), name="first")
    outcome = api.run(request, QUIET, on_start=seen.append)
    assert (outcome.exit_status, outcome.signal, outcome.timed_out) == (3, None, False)
    assert outcome.changed and outcome.layer is not None
    assert sorted(os.listdir(target)) == ["old", "sub"]
    assert (outcome.layer.upper(0) / "new").read_text() == "new\n"
    entry = records.find("first")
    assert entry == Entry(outcome.id, outcome.record, outcome.layer, word="first")
    record = outcome.record
    assert (record.command, record.targets) == (request.command, (str(target),))
    assert (record.exit_status, record.backend, record.network) == (3, "overlay", "none")
    assert record.owner == os.getpid() and record.started <= (record.ended or 0)
    assert any(each.name.startswith("network") and each.enforced for each in record.guarantees)
    assert entry.status == "ended"
    assert [each.ended for each in seen] == [None]


def test_the_record_is_there_before_the_command_starts(target: Path) -> None:
    found: list[Entry] = []
    api.run(
        RunRequest(("true",)), QUIET, on_start=lambda record: found.append(records.find("last"))
    )
    assert found[0].record is not None and found[0].record.command == ("true",)
    assert records.entries() == []


def test_a_run_without_changes_leaves_nothing(target: Path) -> None:
    outcome = sh("cat old; echo x > /tmp/elsewhere")
    assert outcome.exit_status == 0 and not outcome.changed
    assert records.entries() == []
    assert not os.listdir(places.state_folder("runs"))


def test_going_on_in_the_same_layer_remembers_every_run(target: Path) -> None:
    first = sh("echo one > one", name="work")
    second = sh("cat one && echo two > two", continue_in="last")
    third = sh("cat one two > three; exit 4", continue_in="work", name="work")
    assert first.id == second.id == third.id
    assert second.exit_status == 0
    (entry,) = records.entries()
    assert entry.record is not None and entry.name == "work"
    assert [past.command[2] for past in entry.record.earlier] == [
        "echo one > one",
        "cat one && echo two > two",
    ]
    assert [past.exit_status for past in entry.record.earlier] == [0, 0]
    assert entry.layer is not None and (entry.layer.upper(0) / "three").read_text() == "one\ntwo\n"


def test_what_cannot_be_gone_on_in_is_refused(target: Path) -> None:
    with pytest.raises(ChangesError) as caught:
        sh("true", continue_in="nothing")
    assert caught.value.kind is Kind.UNKNOWN_ID
    outcome = sh("echo one > one")
    assert outcome.layer is not None
    with pytest.raises(ChangesError) as caught:
        sh("true", continue_in=outcome.id, targets=(str(target),))
    assert caught.value.kind is Kind.INVALID
    outcome.layer.discard()
    with pytest.raises(ChangesError) as caught:
        sh("true", continue_in=outcome.id)
    assert caught.value.kind is Kind.UNKNOWN_ID


def test_a_run_that_lives_cannot_be_gone_on_in(target: Path) -> None:
    def meanwhile(record: records.Record) -> None:
        with pytest.raises(LaunchError) as caught:
            sh("true", continue_in=record.id)
        assert caught.value.kind is Kind.IN_USE
        assert records.find(record.id).status == "running"

    api.run(RunRequest(("true",)), QUIET, on_start=meanwhile)


def test_a_bad_name_or_timeout_starts_nothing(target: Path) -> None:
    sh("echo > kept", name="taken")
    for options in ({"name": "taken"}, {"name": "a\nb"}, {"timeout": -1.0}, {"name": "last"}):
        with pytest.raises(Exception, match=r"taken|cannot name|timeout"):
            sh("echo > never", **options)
    assert len(records.entries()) == 1


def test_the_command_starts_where_the_caller_is(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(target / "sub")
    outcome = sh("pwd > where", targets=(target,))
    assert outcome.layer is not None
    assert (outcome.layer.upper(0) / "sub/where").read_text() == f"{target}/sub\n"
    monkeypatch.chdir("/usr")
    outcome = sh("pwd > where", targets=(target,))
    assert outcome.layer is not None
    assert (outcome.layer.upper(0) / "where").read_text() == f"{target}\n"


def test_a_folder_that_is_gone_is_no_place_to_start(target: Path) -> None:
    gone = folder("gone")
    code = (
        "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'podbot', 'run', '--target', sys.argv[2],"
        " '--', 'pwd'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, gone, target], capture_output=True, text=True, check=False
    )
    assert result.stdout == f"{target}\n", result.stderr
    assert result.returncode == 0


def test_several_targets_are_reviewed_together(target: Path) -> None:
    other = folder("other")
    outcome = sh(f"echo a > a; echo b > {other}/b", targets=(target, other))
    assert outcome.layer is not None and outcome.record.targets == (str(target), str(other))
    assert (outcome.layer.upper(1) / "b").read_text() == "b\n"
    assert not os.listdir(other)
    layers.remove(other)


def test_a_state_folder_that_cannot_be_used_is_named_before_anything_runs(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(target / "old"))
    with pytest.raises(ChangesError) as caught:
        sh("echo > never")
    assert caught.value.kind is Kind.STATE_FAILED
    assert layers.found() == []


def test_a_record_that_cannot_be_written_in_the_end_is_said(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def block(record: records.Record) -> None:
        path = places.state_folder("runs") / f"{record.id}.new"
        path.mkdir()

    outcome = api.run(RunRequest(("sh", "-c", "echo > new")), QUIET, on_start=block)
    assert outcome.exit_status == 0 and outcome.layer is not None
    assert outcome.problem is not None and "cannot be written" in outcome.problem
    assert records.find("last").status == "broken off"
    os.rmdir(places.state_folder("runs") / f"{outcome.id}.new")


def test_what_is_written_at_the_last_moment_is_kept_with_its_record(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As by something in the background, after we looked and before all of it was dead.
    looked: list[bool] = []
    really = layers.Layer.empty.fget
    assert really is not None

    def empty(layer: layers.Layer) -> bool:
        looked.append(really(layer))
        return len(looked) == 1 or looked[-1]

    monkeypatch.setattr(layers.Layer, "empty", property(empty))
    outcome = sh("echo > late; exit 3")
    assert looked == [False, False]
    assert outcome.changed
    entry = records.find(outcome.id)
    assert entry.record is not None
    assert (entry.status, entry.record.exit_status) == ("ended", 3)


# Options


def test_nothing_of_podbot_is_on_stdout(target: Path) -> None:
    result = podbot("run", "--keep", "--", "sh", "-c", "echo out; echo new > new")
    assert (result.returncode, result.stdout) == (0, "out\n")
    assert "podbot changes show" in result.stderr
    assert records.find("last").status == "ended"


def test_an_uneventful_run_says_nothing(target: Path) -> None:
    result = podbot("run", "--", "echo", "out")
    assert (result.returncode, result.stdout, result.stderr) == (0, "out\n", "")


def test_work_written_to_the_home_outside_of_the_target_is_named_at_the_end(target: Path) -> None:
    home = folder("home")
    (home / "there").mkdir()
    env = {**os.environ, "HOME": str(home)}
    script = "cd; echo x > lost; echo y > there/b; echo z > .zrc; ln -s / link; mkdir -p .cache/t"
    script += "; echo > .cache/t/f; echo ls > .bash_history; mkdir empty"
    result = podbot("run", "--", "sh", "-c", script, env=env)
    [line] = result.stderr.splitlines()
    assert result.returncode == 0 and result.stdout == ""
    assert "not kept" in line and ": ~/link, ~/lost, ~/there/b and 1 more; " in line
    assert line.endswith(f"podbot run --target {target} --target ~ -- …")
    shell = podbot("shell", "--keep", env=env, stdin=None, input="echo x > ~/lost\necho > new\n")
    assert shell.stderr.splitlines()[-1].endswith(f"podbot shell --target {target} --target ~")
    asked_for = podbot("run", "--discard", "--", "sh", "-c", script, env=env)
    assert asked_for.stderr == ""
    kept = podbot("run", "--target", str(home), "--", "sh", "-c", "echo x > ~/lost", env=env)
    assert "not kept" not in kept.stderr and "1 added" in kept.stderr
    assert sorted(os.listdir(home)) == ["there"]
    layers.remove(home)


def test_a_name_in_the_home_says_nothing_in_the_place_of_podbot(target: Path) -> None:
    home = folder("home")
    env = {**os.environ, "HOME": str(home)}
    script = "cd; echo x > \"$(printf 'a\\npodbot run: all is well')\""
    script += "; echo y > \"$(printf '\\033[2J')\""
    result = podbot("run", "--", "sh", "-c", script, env=env)
    [line] = result.stderr.splitlines()
    assert "\\n" in line and "\033" not in line
    layers.remove(home)


def test_what_is_not_kept_is_a_key_for_programs(target: Path) -> None:
    home = folder("home")
    env = {**os.environ, "HOME": str(home)}
    words = ("run", "--json", "--", "sh", "-c")
    assert json.loads(podbot(*words, "true", env=env).stderr)["not_kept"] == []
    [line] = podbot(*words, "echo x > ~/lost; mkdir ~/.cache", env=env).stderr.splitlines()
    assert json.loads(line)["not_kept"] == [f"{home}/lost"]
    page = (Path(__file__).parents[2] / "docs" / "changes.md").read_text()
    assert {key for key in json.loads(line) if f"`{key}`" not in page} == set()
    layers.remove(home)


def test_hidden_and_shown_paths(target: Path) -> None:
    home = folder("home")
    (home / ".netrc").write_text("login\n")
    (target / "secret").write_text("key\n")
    env = {**os.environ, "HOME": str(home)}
    script = "cat secret; cat ~/.netrc"
    hidden = podbot("run", "--hide", "secret", "--", "sh", "-c", script, env=env)
    assert hidden.stdout == "" and hidden.stderr.count("No such file") == 2
    shown = podbot("run", "--show", f"{home}/.netrc", "--", "sh", "-c", script, env=env)
    assert shown.stdout == "key\nlogin\n"
    layers.remove(home)


def test_a_path_to_show_that_is_not_there_is_named(target: Path) -> None:
    result = podbot("run", "--show", "nope/.netrc", "--show", "old", "--", "true")
    [line] = result.stderr.splitlines()
    assert line == "podbot run: note: --show nope/.netrc: there is nothing of that name here"
    [only] = podbot("run", "--json", "--show", "nope", "--", "true").stderr.splitlines()
    assert json.loads(only)["exit_status"] == 0


def test_a_path_to_hide_that_comes_later_is_hidden_as_the_note_says(target: Path) -> None:
    command = [*PODBOT, "run", "--hide", "later", "--hide", "old", "--hide", "/no/such", "--"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    script = "echo ready; read go; ls -A; cat later || echo unseen"
    with subprocess.Popen([*command, "sh", "-c", script], text=True, **pipes) as running:  # type: ignore[call-overload]
        assert running.stdout.readline() == "ready\n"
        (target / "later").write_text("secret\n")
        out, err = running.communicate("go\n", timeout=60)
    assert out.split() == ["sub", "unseen"]
    [line] = (line for line in err.splitlines() if "--hide" in line)
    assert line.endswith(" --hide later: nothing is there yet; should it come, it is hidden")


def test_files_hidden_by_rule_are_named_with_the_option_that_shows_one(target: Path) -> None:
    home = folder("home")
    env = {**os.environ, "HOME": str(home)}
    names = ["a.pem", ".b/token", "c\n.key", "d.key"]
    for count, name in enumerate(names, 1):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("s3cret\n")
        (home / name).chmod(0o600)
        if count == 1:
            [one] = podbot("run", "--", "true", env=env).stderr.splitlines()
    start = f"podbot run: note: 1 file below {home} looks like a key or token and is hidden"
    assert one == f"{start} (~/a.pem): --show PATH shows one"
    result = podbot("run", "--keep", "--", "sh", "-c", "echo > new", env=env)
    first = result.stderr.splitlines()[0]
    named = "(~/.b/token, ~/a.pem, ~/c\\n.key and 1 more)"
    assert first.endswith(f"are hidden {named}: --show PATH shows one")
    assert "Policy" not in podbot("changes", "show", env=env).stdout
    shown = podbot("run", "--show", f"{home}/a.pem", "--", "sh", "-c", "cat ~/a.pem", env=env)
    assert shown.stdout == "s3cret\n"
    layers.remove(home)


def test_the_environment_is_what_was_asked_for(target: Path) -> None:
    env = {**os.environ, "MINE": "m", "OTHER": "o"}
    words = ("--env", "MINE", "--env", "SET=a=b", "--env", "MISSING")
    script = "echo $MINE/$OTHER/$SET/$MISSING/$PODBOT_RUN"
    result = podbot("run", *words, "--", "sh", "-c", script, env=env)
    mine, other, value, missing, id = result.stdout.strip().split("/")
    assert (mine, other, value, missing) == ("m", "", "a=b", "")
    assert len(id) == len("20250101-000000-00000000")
    assert "MISSING" in result.stderr and "MINE" not in result.stderr


def test_the_network_is_off_unless_asked_for(target: Path) -> None:
    script = "ls /sys/class/net 2>/dev/null; cat /proc/net/dev"
    inside = podbot("run", "--", "sh", "-c", script).stdout
    host = podbot("run", "--net", "host", "--", "sh", "-c", script).stdout
    lines = Path("/proc/net/dev").read_text().splitlines()
    interfaces = {line.split(":")[0].strip() for line in lines if ":" in line}
    assert {line.split(":")[0].strip() for line in inside.splitlines() if ":" in line} == {"lo"}
    assert all(name in host for name in interfaces)


@pytest.mark.parametrize(
    ("text", "found"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400)],
)
def test_times_are_numbers_with_a_unit(text: str, found: float) -> None:
    assert run_options.seconds(text) == found


@pytest.mark.parametrize(
    "words",
    [
        ("--timeout", "soon", "--", "true"),
        ("--timeout", "0", "--", "true"),
        ("--timeout", "-5", "--", "true"),
        ("--timeout", "nan", "--", "true"),
        ("--timeout", "inf", "--", "true"),
        ("--net", "some", "--", "true"),
        ("--yes", "--discard", "--", "true"),
        ("--nonsense", "--", "true"),
        ("--name", "x/y", "--", "true"),
        ("--in", "nothing", "--", "true"),
        ("--target", "/no/such/folder", "--", "true"),
        ("--target", "/etc/passwd", "--", "true"),
        ("--env", "=x", "--", "true"),
        ("--show", "/etc/ssl/private/x", "--", "true"),
        ("--", ""),
        ("--",),
        (),
    ],
)
def test_whatever_podbot_cannot_do_is_125_and_said_on_stderr(
    target: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["run", *words])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capfd.readouterr()
    assert (code, out) == (125, "")
    assert "podbot run: " in err
    assert records.entries() == []


@pytest.mark.parametrize(
    ("command", "code", "way"),
    [
        ("no-such", 127, "look at how it is spelled, install it, or name it by its path"),
        ("./no-such", 127, "look at how it is spelled; of a script, at what its first line names"),
        ("here", 127, "the one of this folder: podbot run -- ./here"),
        ("ls | wc", 127, "what a shell is to read: podbot run -- sh -c 'ls | wc'"),
        ("./old", 126, "make it executable (chmod +x ./old), or name what runs it: sh ./old"),
    ],
)
def test_a_command_that_cannot_be_started_is_told_with_a_way_on(
    command: str, code: int, way: str, target: Path
) -> None:
    (target / "here").write_text("#!/bin/sh\n")
    result = podbot("run", "--", command)
    said, remedy = result.stderr.splitlines()
    assert result.returncode == code and said.startswith(f"podbot run: {command}: ")
    assert remedy == f"  remedy: {way}"
    assert podbot("run", "--", "sh", "-c", f"exit {code}").stderr == ""


def test_the_commands_own_options_are_its_own(target: Path) -> None:
    for words in (["--", "echo", "--", "-n", "--json"], ["echo", "--", "-n", "--json"]):
        assert podbot("run", *words).stdout == "-- -n --json\n"


def test_help_teaches(capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "shell"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = capfd.readouterr().out
        assert f"podbot {command}" in text and "examples:" in text and "exit codes:" in text


def test_discard_throws_away_and_keep_keeps(target: Path) -> None:
    assert podbot("run", "--discard", "--", "sh", "-c", "echo > new; exit 5").returncode == 5
    assert records.entries() == []
    assert podbot("run", "--keep", "--", "sh", "-c", "echo > new; exit 5").returncode == 5
    assert len(records.entries()) == 1
    assert not (target / "new").exists()


def test_yes_applies(target: Path) -> None:
    result = podbot("run", "--yes", "--", "sh", "-c", "echo new > new; rm old; exit 5")
    assert result.returncode == 5, result.stderr
    assert sorted(os.listdir(target)) == ["new", "sub"]


def test_yes_stops_where_something_would_run_by_itself(target: Path) -> None:
    result = podbot("run", "--yes", "--", "sh", "-c", "echo 'rm -rf ~' > .envrc; echo > plain")
    assert result.returncode == 125
    assert result.stderr.count(".envrc") == 1 and "podbot: " not in result.stderr
    assert "podbot run: nothing was applied, as some of it runs by itself" in result.stderr
    assert "\n  remedy: decide on each: podbot changes pick " in result.stderr
    assert sorted(os.listdir(target)) == ["old", "sub"]
    assert records.find("last").layer is not None


def test_json_has_the_same_keys_whatever_came_of_it(target: Path) -> None:
    ways = [
        ["--", "true"],
        ["--", "sh", "-c", "echo > kept"],
        ["--yes", "--", "sh", "-c", "echo > applied"],
        ["--discard", "--", "sh", "-c", "echo > discarded"],
        ["--", "no-such-command"],
        ["--target", "/no/such", "--", "true"],
    ]
    found = [json.loads(podbot("run", "--json", *way).stderr.splitlines()[-1]) for way in ways]
    assert [each["outcome"] for each in found] == [
        "nothing", "kept", "applied", "discarded", "nothing", "failed",
    ]  # fmt: skip
    assert {frozenset(each) for each in found} == {frozenset(found[0])}
    assert found[-1]["exit_status"] is None and found[0]["exit_status"] == 0


def test_json_is_one_line_at_the_end_of_stderr(target: Path) -> None:
    result = podbot(
        "run", "--json", "--name", "j", "--", "sh", "-c", "echo e >&2; echo > new; exit 3"
    )
    *others, last = result.stderr.splitlines()
    found = json.loads(last)
    assert others == ["e"] and result.returncode == 3
    assert (found["exit_status"], found["outcome"], found["name"]) == (3, "kept", "j")
    assert found["changes_count"] == 1 and found["id"] == records.find("j").id
    nothing = json.loads(podbot("run", "--json", "--", "true").stderr)
    assert (nothing["exit_status"], nothing["outcome"]) == (0, "nothing")
    missing = podbot("run", "--json", "--", "no-such-command")
    assert missing.returncode == 127
    assert "no-such-command" in json.loads(missing.stderr)["error"]
    failed = podbot("run", "--json", "--target", "/no/such", "--", "true")
    assert failed.returncode == 125
    assert json.loads(failed.stderr)["error"]["kind"] == "target_missing"


def test_notes_of_the_sandbox_are_said_before_the_command_starts(target: Path) -> None:
    project, elsewhere = target / "project", target / "git-data"
    project.mkdir()
    subprocess.run(["git", "init", "-q", "--separate-git-dir", elsewhere, project], check=True)
    result = podbot("run", "--target", str(project), "--", "sh", "-c", "echo begun >&2")
    first, *_, last = result.stderr.splitlines()
    assert first.startswith("podbot run: note:") and str(elsewhere) in first
    assert last == "begun"
    assert "thrown away" not in result.stderr


# At a terminal


def test_at_a_terminal_the_person_is_asked_and_enter_keeps(target: Path) -> None:
    with Screen([*PODBOT, "run", "--", "sh", "-c", "echo new > new"], cwd=target) as screen:
        screen.see("[d]iscard")
        screen.type("\r")
        assert screen.end() == 0
    assert records.find("last").layer is not None


def test_at_a_terminal_the_exit_status_outlives_the_menu(target: Path) -> None:
    script = "echo new > new; echo ready; exec sleep 999"
    with Screen([*PODBOT, "run", "--", "sh", "-c", script], cwd=target) as screen:
        screen.see("ready")
        screen.type("\x03")
        screen.see("[d]iscard")
        screen.type("k\r")
        assert signal_of(screen.end()) is signal.SIGINT
        assert screen.modes == screen.before


def test_who_was_told_to_end_is_not_asked(target: Path) -> None:
    script = "trap 'exit 6' TERM; echo new > new; echo ready; while :; do sleep 0.05; done"
    with Screen([*PODBOT, "run", "--", "sh", "-c", script], cwd=target) as screen:
        screen.see("ready")
        screen.process.send_signal(signal.SIGTERM)
        assert screen.end() == 6
        assert b"[d]iscard" not in screen.seen
    assert records.find("last").layer is not None


def test_the_shell_greets_hints_and_ends_like_a_run(target: Path) -> None:
    env = {"SHELL": "/bin/sh", "HOME": str(target)}
    with Screen([*PODBOT, "shell", "--keep"], cwd=target, env=env) as screen:
        screen.see("apart;")  # one word: lines may break before and after it
        screen.see("(podbot)")
        screen.type("echo new > new; exit 3\r")
        assert screen.end() == 3
        assert screen.modes == screen.before
    entry = records.find("last")
    assert entry.record is not None and entry.record.command == ("/bin/sh",)
    assert not (target / "new").exists()


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/zsh"])
def test_the_prompt_of_each_shell_says_which_folder_it_is_in(target: Path, shell: str) -> None:
    if not os.path.exists(shell):
        pytest.skip(f"{shell} is not installed")
    own = folder("home")  # without start-up files
    (own / ".zshrc").write_text("")
    env = {"SHELL": shell, "HOME": str(own)}
    with Screen([*PODBOT, "shell", "--discard"], cwd=target, env=env) as screen:
        screen.see(f"(podbot) {target} ")
        screen.type("exit\r")
        assert screen.end() == 0
    layers.remove(own)


def test_the_shell_takes_a_script_on_stdin(target: Path) -> None:
    result = podbot("shell", "--discard", stdin=None, input="echo sum: $((1 + 2))\nexit 4\n")
    assert (result.returncode, result.stdout) == (4, "sum: 3\n")


def test_the_shell_is_the_users_or_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert shelling.shell() == "/bin/sh"
    for own in ("/no/such/shell", "relative/sh", ""):
        monkeypatch.setenv("SHELL", own)
        assert os.path.basename(shelling.shell()) in ("bash", "sh")


# Crashes


@pytest.mark.parametrize("victim", ["podbot", "guest", "group"])
def test_nothing_written_is_lost_when_someone_is_killed(target: Path, victim: str) -> None:
    marker = f"98765.{os.getpid()}{victim}"
    script = (
        "for i in $(seq 200); do echo $i > file$i; done; rm old; mkdir -p deep/er; "
        f"echo x > deep/er/x; sync; echo ready; exec -a {marker} sleep 1000"
    )
    argv = [*PODBOT, "run", "--name", victim, "--", "bash", "-c", script]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: bool(by_marker(marker)))
        (inside,) = by_marker(marker)
        if victim == "podbot":
            os.kill(process.pid, signal.SIGKILL)
        elif victim == "group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(parent(inside), signal.SIGKILL)
        code = process.wait(60)
        told = process.stderr.read().decode()
    if victim == "guest":
        assert code == 125 and "podbot changes show" in told
    else:
        assert signal_of(code) is signal.SIGKILL
    until(lambda: not state(inside))
    entry = records.find(victim)
    until(lambda: not entry.live)
    (entry,) = records.entries()
    assert entry.status == ("ended" if victim == "guest" else "broken off")
    assert entry.record is not None and entry.record.command[0] == "bash"
    assert entry.layer is not None
    upper = entry.layer.upper(0)
    assert [(upper / f"file{i}").read_text() for i in range(1, 201)] == [
        f"{i}\n" for i in range(1, 201)
    ]
    assert (upper / "deep/er/x").read_text() == "x\n"
    assert "old" in os.listdir(upper)  # the mark that it was removed
    assert sorted(os.listdir(target)) == ["old", "sub"]
    from podbot.changes.capture import capture

    assert len(capture(entry.layer)) == 204
    again = api.run(RunRequest(("cat", "deep/er/x"), continue_in=victim), QUIET)
    assert again.exit_status == 0 and again.record.earlier[0].command[0] == "bash"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_killed_before_the_command_started_leaves_nothing_that_is_not_listed(target: Path) -> None:
    code = (
        "import os, signal; from podbot import api\n"
        "api.run(api.RunRequest(('true',)),"
        " on_start=lambda record: os.kill(os.getpid(), signal.SIGKILL))"
    )
    process = subprocess.run([sys.executable, "-c", code], check=False)
    assert signal_of(process.returncode) is signal.SIGKILL
    (entry,) = records.entries()
    until(lambda: not entry.live)
    assert entry.status == "broken off" and entry.layer is not None and entry.layer.empty


# Reading the command line


@pytest.mark.parametrize(
    "words",
    [
        ["true"],
        ["--", "true"],
        ["--", "--", "true"],
        ["--net", "host", "make", "-j", "--net=none"],
        ["--net=host", "--json", "--", "make"],
        ["--target", "a", "--target=b", "--hide", "c", "--show=d", "--env", "E", "--env=F=g", "x"],
        ["--in", "last", "--keep", "--keep", "--name=n", "--timeout", "5m", "--", "x", "--yes"],
        ["--discard", "--name=", "x"],
        ["--yes", "--", "-x"],
    ],
)
def test_a_plain_command_line_is_read_as_argparse_reads_it(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    running.add_arguments(parser)
    assert run_options.plain(words) == run_options.options_of(parser.parse_args(words))


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h", "x"],
        ["--tar", "a", "x"],
        ["--net", "some", "x"],
        ["--name", "--", "x"],
        ["--name"],
        ["--json=yes", "x"],
        ["--yes", "--keep", "x"],
        ["--timeout", "soon", "x"],
        ["--no-such", "x"],
    ],
)
def test_what_is_not_plain_is_left_to_argparse(words: list[str]) -> None:
    assert run_options.plain(words) is None


def test_a_sandbox_is_begun_ahead_and_taken_over(target: Path) -> None:
    code = (
        "from podbot.sandbox.overlay import ahead; ahead.begin(); ahead.begin()\n"
        "import os; from podbot.sandbox.overlay import owner\n"
        "pid = ahead._begun[1]; assert owner.zygote().pid == pid and ahead.take() is None\n"
        "from podbot import api; print(api.run(api.RunRequest(('true',))).exit_status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n", done.stderr


def test_one_begun_before_a_fork_stays_the_parents(target: Path) -> None:
    code = (
        "from podbot.sandbox.overlay import ahead; ahead.begin()\n"
        "import os; child = os.fork()\n"
        "if child == 0: os._exit(0 if ahead.take() is None else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0 and ahead.take() is not None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_start_loads_neither_argparse_nor_other_heavy_modules(target: Path) -> None:
    # `podbot run -- true` is to take no longer than a few starts of an interpreter.
    assert podbot("run", "--", "true").returncode == 0  # the first one makes what all share
    code = (
        "import sys; before = set(sys.modules)\n"
        "from podbot.cli import main; main(['run', '--', 'true'])\n"
        "heavy = {'argparse', 'asyncio', 'dataclasses', 'hashlib', 'inspect', 'random', 'shutil',"
        " 'subprocess', 'tempfile', 'podbot.sandbox.guest.requests', 'podbot.changes.capture'}\n"
        "print(sorted(heavy & set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stderr


def test_in_a_folder_that_was_removed_it_is_named_and_what_to_do(tmp_path: Path) -> None:
    for words in (["run", "--", "true"], ["run", "--json", "--", "true"], ["shell"]):
        gone = tmp_path / "gone"
        gone.mkdir()
        code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        code += "os.execv(sys.executable, sys.argv[2:])"
        argv = [sys.executable, "-c", code, str(gone), *PODBOT, *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 125, done
        told = done.stdout + done.stderr
        assert "current folder" in told and "remedy" in told, done


@pytest.mark.parametrize("further", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["", "unbuffered"])
def test_with_nowhere_to_say_it_the_code_is_that_of_podbot_failing(
    tmp_path: Path, further: dict[str, str]
) -> None:
    argv = [*PODBOT, "run", "--json", "--", "sh", "-c", "echo x > x"]
    env = {**os.environ, **further}
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, cwd=tmp_path, stdout=full, stderr=full, env=env, check=False)
    assert done.returncode == 125


def test_help_that_nobody_can_read_is_a_failure() -> None:
    with open("/dev/full", "w") as full:
        assert (
            subprocess.run([*PODBOT, "--help"], stdout=full, stderr=full, check=False).returncode
            == 2
        )


@pytest.mark.parametrize("home", ["rel", "", None])
def test_a_home_that_is_no_absolute_path_puts_no_state_here(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(places.STATE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    own = pwd.getpwuid(os.getuid()).pw_dir
    assert places.state_place() == Path(own, ".local/state/podbot")

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ChangesError) as caught:
        places.state_place()
    assert caught.value.kind is Kind.STATE_FAILED


def test_a_state_folder_of_another_user_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ChangesError) as caught:
        places.unfinished()
    assert caught.value.kind is Kind.STATE_FAILED
    assert str(places.state_place()) in caught.value.message and caught.value.remedy
