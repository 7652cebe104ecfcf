"""What Tab offers: asked as the scripts ask, and in the shells themselves."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from cli_runs import workplace
from screen import Screen

from podbot.cli import COMMANDS, main
from podbot.sandbox.backends import ENTRY_POINTS
from podbot.sandbox.overlay.launcher import OverlaySandbox


def asked(*words: str, of: str = "bash") -> tuple[str, list[str]]:
    """What can stand in the place of the last word: the kind, and the words."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out):
        assert main(["completion", of, "--", *words]) == 0
        out.flush()
    lines = out.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]  # BytesIO
    return lines[0], [line.partition("\t")[0] for line in lines[1:]]


def test_commands_and_their_verbs_are_offered() -> None:
    assert asked("") == ("words", [*COMMANDS, "--help", "--version"])
    assert asked("ch")[1] == ["changes"]
    assert asked("changes", "s")[1] == ["show", "save"]
    assert asked("image", "")[1] == ["build", "list"]
    assert asked("nonsense", "")[1] == []


def test_options_are_offered_where_they_can_stand() -> None:
    assert "--on-conflict" in asked("changes", "apply", "last", "--")[1]
    assert asked("changes", "apply", "last", "--on-conflict", "")[1] == [
        "stop",
        "skip",
        "overwrite",
    ]
    assert asked("run", "--ne")[1] == ["--net"]
    assert asked("exec", "--js")[1] == ["--json"]
    assert asked("run", "--net", "h")[1] == ["host"]
    assert asked("run", "--net=h", of="zsh")[1] == ["--net=host"]
    assert asked("run", "--net", "=", "h")[1] == ["host"], "bash takes it apart"


def test_backends_are_offered_those_of_packages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints([EntryPoint("theirs", "theirs:Launcher", ENTRY_POINTS)]).select(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    every = ["overlay", "container", "memory", "local", "theirs"]
    assert asked("mcp", "--backend", "")[1] == every
    assert asked("run", "--backend", "")[1] == [name for name in every if name != "memory"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("run", "--target", ""), "folders"),
        (("changes", "load", ""), "files"),
        (("changes", "save", "last", ""), "files"),
        (("run", "ma"), "command 1"),
        (("run", "--net", "host", "ma"), "command 3"),
        (("run", "--", "make", "te"), "command 2"),
        (("exec", "name", "--", "l"), "command 3"),
    ],
)
def test_what_is_no_word_of_podbots_is_left_to_the_shell(words: tuple[str, ...], kind: str) -> None:
    assert asked(*words) == (kind, [])


def test_every_command_and_verb_can_be_completed() -> None:
    for name in COMMANDS:
        assert "--help" in asked(name, "--h")[1]
        for verb in asked(name, "")[1]:
            assert asked(name, verb, "")[0].split()[0] in ("words", "files", "folders", "command")


@pytest.fixture
def layer() -> Iterator[str]:
    with workplace() as project, OverlaySandbox(project) as sandbox:
        sandbox.write("new/deep/one.py", "1\n")
        sandbox.write("new/two.py", "2\n")
        sandbox.write("a b;$(touch hacked)", "3\n")
        sandbox.write("new\nline", "4\n")
        sandbox.write("esc\x1b[31m", "5\n")
        layer = sandbox.layer
        assert layer is not None
        sandbox.close()
        yield layer.id


def test_runs_and_changed_paths_are_offered(layer: str) -> None:
    assert asked("changes", "show", "")[1] == ["last", layer]
    assert asked("run", "--in", layer[:9])[1] == [layer]
    assert asked("changes", "diff", layer, "")[1] == ["a b;$(touch hacked)", "new/"]
    assert asked("changes", "diff", layer, "new/")[1] == ["new/deep/", "new/two.py"]
    assert asked("changes", "apply", layer, "--allow-flagged", "new/t")[1] == ["new/two.py"]
    assert asked("changes", "diff", "unknown", "")[1] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_the_shell_can_read(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


SHELLS = {
    "bash": (["--norc", "-i"], 'eval "$(podbot completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -U compinit; compinit -D; eval "$(podbot completion zsh)"'),
    "fish": (["--no-config", "-i"], "podbot completion fish | source"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_and_quotes_what_a_sandbox_named(
    tmp_path: Path, layer: str, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    options, script = SHELLS[shell]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "PS1": "% "}
    with Screen([shell, *options], cwd=tmp_path, env=environment, columns=200) as screen:
        screen.type(f"{script}; echo re''ady\n")
        screen.see("ready")
        screen.type(f"podbot changes diff {layer} a\t")
        screen.see("hacked")
        screen.type("\x01: \x05; echo do''ne; ls\n")  # to the start of the line, and to its end
        screen.see("done")

    assert not (tmp_path / "hacked").exists()
