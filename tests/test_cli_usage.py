"""Wrong command lines, and command lines that are told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from podbot import cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chnages"], "there is no `chnages`; did you mean `changes`? there are: run, shell,"),
        (["changes", "lst"], "there is no `lst`; did you mean `list`?"),
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
