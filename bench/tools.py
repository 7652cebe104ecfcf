"""Tool calls on trees as large as a project: a framework must not look at all of it."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing
from pathlib import Path

import podbot.sandbox
from bench.commands import bare
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting, tool
from podbot.prompt import Prompt
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import OverlaySandboxConfig, OverlaySandboxSection

SIZES = (500, 20_000)
PER_FOLDER = 100
MATCHES = 1000
NEEDLE = "needle_in_the_hay"
TEXT = "return value self import async await buffer stream token\n" * 40
FLAGS = (
    "--no-config", "--hidden", "--no-ignore", "--text", "--line-number", "--no-heading",
    "--with-filename", "--color=never", f"--regexp={NEEDLE}", "./",
)  # fmt: skip
TEMPLATE_SECONDS = 2.0


def calls(setting: Setting) -> list[Row]:
    """`shell_execute`, `evaluate_python` and `grep`, on trees of 500 and 20,000 files."""
    rows: list[Row] = []
    for files in SIZES:
        rows += _on(setting, _tree(Path(setting.project(f"tools-{files}")), files), files)
    return rows


def _on(setting: Setting, tree: Path, files: int) -> list[Row]:
    session = Session(bus=InProcessEventBus())
    config = OverlaySandboxConfig(target=tree, discard=True)
    section = OverlaySandboxSection(session=session, config=config)
    prompt = Prompt(ns="bench", key="tools", sections=[section])
    rg = tool("rg")
    assert rg is not None, "the catalogue says that this needs rg"

    def call(name: str, **arguments: object) -> None:
        result = prompt.call(name, arguments, session=session)
        assert result.success, result

    with closing(section):
        call("shell_execute", command=["true"])
        sandbox = section.sandbox
        assert sandbox is not None

        def matches(stdout: bytes) -> None:
            assert stdout.count(b"\n") == MATCHES

        def outside() -> None:
            matches(subprocess.run([rg, *FLAGS], cwd=tree, capture_output=True, check=True).stdout)

        def grep() -> None:
            assert len(sandbox.grep(NEEDLE).matches) == MATCHES

        call("evaluate_python", code="1 + 1")
        time.sleep(TEMPLATE_SECONDS)  # what later ones are forked from starts when the first ended
        quick = race(
            {
                "exec": Side(lambda: sandbox.exec(["true"]).check()),
                "shell": Side(lambda: call("shell_execute", command=["true"])),
                "python": Side(lambda: call("evaluate_python", code="1 + 1")),
            },
            setting.pace(100, 0.005),
        )
        found = race(
            {
                "grep": Side(grep),
                "inside": Side(lambda: matches(sandbox.exec([rg, *FLAGS]).check().stdout_bytes)),
                "outside": Side(outside),
            },
            setting.pace(20, 0.005),
        )
    where, run = f"{files:,} files", "sandbox.exec"
    inside = "rg in the sandbox"
    return [
        Row("tools", f"shell_execute true, {where}", quick["shell"], "ms", quick["exec"], run,
            Target(1.5)),
        Row("tools", f"evaluate_python 1 + 1, {where}", quick["python"], "ms", quick["exec"],
            f"{run} true", Target(3)),
        Row("tools", f"grep, {MATCHES:,} matches, {where}", found["grep"], "ms", found["inside"],
            inside, Target(1.2)),
        Row("tools", f"{inside}, {where}", found["inside"], "ms", found["outside"], "rg", None),
    ]  # fmt: skip


def local(setting: Setting) -> list[Row]:
    """A local sandbox from start to end, from the second in a process on."""
    target = setting.project("local-lifecycle")

    def ours() -> None:
        with podbot.sandbox.open("local", target=target) as sandbox:
            sandbox.exec(["true"]).check()

    spread = race({"ours": Side(ours), "bare": Side(bare)}, setting.pace(100, 0.005))
    what = "create + true + close, local"
    return [Row("local", what, spread["ours"], "ms", spread["bare"], "subprocess.run", Target(4))]


def _tree(folder: Path, files: int) -> Path:
    """Folders of small texts, with as many matches in all of them, whatever their number."""
    each = max(1, MATCHES // files)
    every = max(1, files // MATCHES)
    for number in range(files):
        below = folder / f"folder{number // PER_FOLDER}"
        below.mkdir(exist_ok=True)
        needles = f"x = {NEEDLE}({number})\n" * each if number % every == 0 else ""
        (below / f"file{number}.py").write_text(TEXT + needles)
    return folder
