"""Starting the command line, and looking at a small run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.kernel import INTERPRETER, python_pass
from bench.measure import Side, Spread, race
from bench.rows import Row, Target
from bench.setting import Setting


def version(setting: Setting) -> list[Row]:
    """`podbot --version`, the installed script."""
    script = str(Path(sys.executable).parent / "podbot")

    def ours() -> None:
        subprocess.run([script, "--version"], stdout=subprocess.DEVNULL, check=True)

    spread = race({"ours": Side(ours), "pass": Side(python_pass)}, setting.pace(60, 0.01))
    what = "podbot --version"
    return [Row("version", what, spread["ours"], "ms", spread["pass"], INTERPRETER, Target(3))]


MANY, FEW = 50_000, 10
ONE_AMONG = Target(2)
"""How much longer it may take to find one changed file among so many as among a few."""


def one_path(setting: Setting) -> list[Row]:
    """`podbot changes diff last PATH`: one edited file of 50,000 changes, beside one of 10."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    podbot = str(Path(sys.executable).parent / "podbot")
    sides = {}
    for count in (MANY, FEW):
        project = Path(setting.project(f"one-of-{count}"))
        (project / "edited").write_text("one\n")
        here = {**env}
        for name in ("STATE", "LAYERS"):
            here[f"PODBOT_{name}"] = str(Path(setting.folder) / f"one-of-{count}-{name.lower()}")
        script = f"echo two >> edited; mkdir d; cd d; seq {count - 2} | xargs touch"
        run = [podbot, "run", "--keep", "--", "sh", "-c", script]
        subprocess.run(run, cwd=project, env=here, check=True, capture_output=True)
        argv = [podbot, "changes", "diff", "last", "edited"]

        def look(
            argv: list[str] = argv, project: Path = project, env: dict[str, str] = here
        ) -> None:
            done = subprocess.run(argv, cwd=project, env=env, check=True, capture_output=True)
            assert b"+two" in done.stdout

        sides[str(count)] = Side(look)
    spread = race(sides, setting.pace(15, 0.05))
    what = f"podbot changes diff last PATH, one of {MANY:,} changes"
    return [
        Row("one-path", what, spread[str(MANY)], "ms", spread[str(FEW)], f"of {FEW}", ONE_AMONG)
    ]


LOOKS = (("list",), ("show", "last"), ("diff", "last"))
LOOK_LIMIT = Target(5)


def looks(setting: Setting) -> list[Row]:
    """`podbot changes list`, `show` and `diff` of a run with three changes."""
    project = setting.project("looks")
    # Compiled modules are kept, as in any installation.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PODBOT_STATE"] = str(setting.folder / "looks-state")
    env["PODBOT_LAYERS"] = str(setting.folder / "looks-layers")
    podbot = str(Path(sys.executable).parent / "podbot")
    script = "mkdir new; echo some text > new/file; echo more > other"
    run = [podbot, "run", "--keep", "--", "sh", "-c", script]
    subprocess.run(run, cwd=project, env=env, check=True, capture_output=True)
    spent: dict[str, list[float]] = {}

    def side(name: str, argv: list[str]) -> Side:
        spent[name] = []

        def start() -> None:
            child = subprocess.Popen(argv, cwd=project, env=env, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = status
            assert status == 0, argv
            spent[name].append((used.ru_utime + used.ru_stime) * 1000)

        return Side(start)

    sides = {" ".join(words): side(" ".join(words), [podbot, "changes", *words]) for words in LOOKS}
    sides["pass"] = side("pass", [sys.executable, "-c", "pass"])
    pace = setting.pace(40, 0.01)
    found = race(sides, pace)
    rows = []
    for words in LOOKS:
        name = " ".join(words)
        what = f"podbot changes {name}"
        times, rival = (Spread.of(spent[each][pace.warm_up :]) for each in (name, "pass"))
        rows += [
            Row("looks", what, found[name], "ms", found["pass"], INTERPRETER, LOOK_LIMIT),
            Row("looks", f"{what}, CPU time", times, "ms", rival, INTERPRETER, LOOK_LIMIT),
        ]
    return rows
