"""Wrong command lines, and command lines that are told to end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from podbot import cli
from podbot.cli import COMMANDS, exec, run
from podbot.cli.usage import Parser


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chnages"], "there is no `chnages`; did you mean `changes`? there are: run, shell,"),
        (["changes", "lst"], "there is no `lst`; did you mean `list`?"),
        (["help"], "there is no `help`; --help says what there is; there are: run, shell,"),
        (["net", "help"], "there is no `help`; --help says what there is; there are: log,"),
        (["zzz"], "there is no `zzz`; there are: run, shell,"),
        (["mcp", "--backend", "overlya"], "--backend: there is no `overlya`; did you mean"),
        (["\x1b[2J"], "there is no `\\x1b[2J`"),
        (
            ["changes", "apply", "last", "--on-conflict", "skp"],
            "--on-conflict: there is no `skp`; did you mean `skip`? there are: stop, skip,",
        ),
        (["changes", "lis't"], "there is no `lis't`; did you mean `list`? there are: list, show,"),
        (["it's"], "there is no `it's`; there are: run, shell,"),
        (["mcp", "--backend", "over'lay"], "--backend: there is no `over'lay`; did you mean"),
    ],
)
def test_a_mistyped_word_is_told_with_the_nearest_one(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# A command that says when it runs, and when it has tidied up.
WORKER = """
import sys, time, types
from podbot import cli
from podbot.cli import exec, run

def run(arguments):
    try:
        print("begun", flush=True)
        while True:  # a pause could begin just after the signal, and never end
            time.sleep(0.05)
    finally:
        print("tidied up", flush=True)

module = types.ModuleType("worker")
module.add_arguments, module.run = lambda parser: None, run
sys.modules["worker"] = module
cli.COMMANDS["worker"] = ("worker", "work")
sys.argv = ["podbot", "worker"]
sys.exit(cli.main())
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_whoever_is_told_to_end_tidies_up(number: signal.Signals, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.stdout.read() == b"tidied up\n"
        assert process.wait(60) == code


def test_a_hang_up_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    script = WORKER.replace("while True:", "if sys.stdin.readline():")
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    with process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write(b"go on\n")
        process.stdin.close()
        assert process.stdout.read() == b"tidied up\n"
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "usage", "said"),
    [
        (
            ["changes", "apply", "--on-conflct", "skip"],
            "usage: podbot changes apply ",
            "podbot changes apply: there is no option --on-conflct; did you mean --on-conflict?\n",
        ),
        (["changes", "diff", "--pach"], "usage: podbot changes diff ", "did you mean --patch?\n"),
        (["changes", "--jsn"], "usage: podbot changes ", "did you mean --json?\n"),
        (["changes", "show", "a", "b"], "usage: podbot changes show ", "no further word: b\n"),
        (["changes", "load", "--taget", "x"], "usage: podbot changes load ", "mean --target?\n"),
        (["changes", "load"], "usage: podbot changes load ", "are required: FILE.tar\n"),
        (
            ["run", "--title", "x", "--", "true"],
            "usage: podbot run ",
            "--title; did you mean --name?\n",
        ),
        (["shell", "--title=x"], "usage: podbot shell ", "--title=x; did you mean --name?\n"),
        (
            ["doctor", "--bad"],
            "usage: podbot doctor ",
            "--bad\n  remedy: podbot doctor --help says what",
        ),
        (
            ["run", "--yes", "--keep", "--", "true"],
            "usage: podbot run ",
            "podbot run: --yes and --keep exclude each other\n  remedy: give one of them\n",
        ),
        (["gc", "--dryrun"], "usage: podbot gc ", "did you mean --dry-run?\n"),
        (["--vrsion"], "usage: podbot ", "podbot: there is no option --vrsion; did you mean"),
        (["shell", "ls"], "usage: podbot shell ", "it takes no further word: ls\n"),
        (["changes", "show", "--\x1b[2J"], "usage: podbot changes show ", "option --\\x1b[2J\n"),
    ],
)
def test_a_mistake_is_told_with_the_usage_of_the_verb_it_was_made_in(
    words: list[str], usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    err = capsys.readouterr().err
    assert err.startswith(usage)
    assert said in err


@pytest.mark.parametrize(
    "words", [["exec", "--x"], ["exec", "a", "--wrkdir", "/", "--", "true"], ["run", "--x", "y"]]
)
def test_a_mistake_cannot_be_taken_for_the_end_of_the_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="125"):
        cli.main(words)
    assert "there is no option --" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["changes", "--json", "aply"],
        ["changes", "show", "--json", "a", "b"],
        ["gc", "--json", "--dryrun"],
        ["ps", "--json", "--engine", "unix:///nowhere/podman.sock"],
        ["image", "list", "--json", "--engine", "unix:///nowhere/podman.sock"],
        ["doctor", "--json", "--bogus"],
    ],
)
def test_a_mistake_is_one_json_document_where_json_was_asked_for(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = cli.main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert {"kind", "message", "remedy"} <= set(error)


@pytest.mark.parametrize(
    ("words", "keys", "said"),
    [
        (["run", "--json", "--nme", "x", "--", "true"], run.KEYS, "--nme; did you mean --name?"),
        (["exec", "--json", "--usr", "0", "a", "ls"], exec.KEYS, "--usr; did you mean --user?"),
        (["exec", "a", "--json", "--x", "--", "ls"], exec.KEYS, "--x; the command comes after --"),
    ],
)
def test_a_mistake_where_stdout_is_the_commands_is_one_line_of_json(
    words: list[str], keys: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="125"):
        cli.main(words)
    told = capsys.readouterr()
    assert told.out == ""
    found = json.loads(told.err)
    assert tuple(found) == keys and found["outcome"] == "failed"
    assert found["error"]["message"] == f"there is no option {said}"


@pytest.mark.parametrize("words", [["exec", "--x", "a", "ls", "--json"], ["exec", "--user", "--x"]])
def test_an_option_of_the_commands_asks_podbot_for_nothing(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="125"):
        cli.main(words)
    assert capsys.readouterr().err.startswith("usage: podbot exec NAME ")


# Help


def all_parsers() -> Iterator[argparse.ArgumentParser]:
    """The parser of every command, and of every verb of one."""
    for name, (module, line) in COMMANDS.items():
        waiting: list[argparse.ArgumentParser] = [Parser(prog=f"podbot {name}", description=line)]
        import_module(module).add_arguments(waiting[0])
        while waiting:
            parser = waiting.pop()
            yield parser
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    waiting += action.choices.values()


def test_what_help_says_fits_on_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = {parser.prog: parser.format_help() for parser in all_parsers()}
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    texts["podbot"] = capsys.readouterr().out

    assert len(texts) > len(COMMANDS) + 1
    wide = [(prog, line) for prog, text in texts.items() for line in text.split("\n")
            if len(line) > 80]  # fmt: skip
    assert wide == []


def test_help_is_broken_only_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "some words\nand more\n\nexamples:\n  a -- b      says what\n              and why\n  c"
    parser = Parser(prog="p", description=text)
    monkeypatch.setenv("COLUMNS", "80")
    assert text in parser.format_help()

    monkeypatch.setenv("COLUMNS", "40")
    narrow = Parser(prog="p", description=text.replace("says what", "says at great length what"))
    beside = " " * 14
    assert f"  a -- b      says at great length\n{beside}what and why\n  c" in narrow.format_help()
