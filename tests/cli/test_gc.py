"""`podbot gc`: removes what nobody can miss, and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from podbot.cli import gc, main
from podbot.engine.finding import candidates
from podbot.errors import ContainerError, Kind
from podbot.launch import containers
from podbot.runs import records
from podbot.sandbox import OverlaySandbox, layers
from podbot.sandbox.overlay import cgroups

LEAVES = """
import os, signal, sys
from podbot.sandbox import OverlaySandbox
sandbox = OverlaySandbox(sys.argv[1])
for name in sys.argv[2:]:
    sandbox.write(name, "written inside")
print(sandbox.layer.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

# A podbot that is killed at the second thing that it moves into the target.
KILLED_APPLY = """
import os, signal, sys
from podbot.changes.applying import journal
left = [2]
def step(what):
    left[0] -= what == "swap"
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
journal.step = step
from podbot.cli import main
main(["changes", "apply", sys.argv[1]])
"""


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A layer root for one test alone, for `podbot gc` looks at all of it.

    The machine's control groups and containers are those of others too, who may leave something
    behind any moment: here there are none.
    """

    def connect(*_: object) -> None:
        raise ContainerError("none here", kind=Kind.NO_ENGINE)

    folder = Path(tempfile.mkdtemp(prefix="podbot-test-", dir="/var/tmp"))
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(folder))
    monkeypatch.setattr(cgroups, "hierarchy", lambda: cgroups.Hierarchy(0, {}))
    monkeypatch.setattr(containers, "connect", connect)
    monkeypatch.setattr(candidates, "find_podman", lambda _: None)
    yield folder
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        with suppress(OSError):  # a zygote may still be removing what was discarded
            layers.remove(folder)
        time.sleep(0.02)


@pytest.fixture
def target() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as folder:
        yield Path(folder)


def killed_sandbox(target: Path, *writes: str) -> str:
    """The layer of a sandbox whose process was killed in the middle of everything."""
    command = [sys.executable, "-c", LEAVES, str(target), *writes]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    name = done.stdout.strip()
    layer = next(layer for layer in layers.found() if layer.id == name)
    deadline = time.monotonic() + 60
    while layer.live:  # the zygote needs a moment to notice
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return name


def fates(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, str]:
    assert main(["gc", "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["dry_run"] == ("--dry-run" in options)
    return {Path(line["path"]).name: line["fate"] for line in report["found"]}


def test_each_layer_meets_its_fate(
    target: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, changed = killed_sandbox(target), killed_sandbox(target, "new.txt")
    with OverlaySandbox(target, discard=True) as live:
        assert live.layer is not None
        expected = {empty: "removed", changed: "kept", live.layer.id: "live"}

        assert fates(capsys, "--dry-run") == expected
        assert (root / empty).exists()
        assert fates(capsys) == expected

        assert not (root / empty).exists()
        assert (root / changed / "0.upper" / "new.txt").read_text() == "written inside"
        assert not (root / changed / "home.upper").exists()
        assert live.exec(["true"]).ok
        assert fates(capsys) == {changed: "kept", live.layer.id: "live"}


def test_a_person_reads_where_the_changes_are_and_what_they_lie_over(
    target: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = killed_sandbox(target, "new.txt")

    assert main(["gc"]) == 0

    out = capsys.readouterr().out
    assert f"kept     {root / name}  over {target}, " in out
    assert "removed: 0, kept for their changes: 1, in use: 0" in out


def test_what_is_worth_discarding_is_named_with_its_size(
    target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as state:
        monkeypatch.setenv("PODBOT_STATE", state)
        monkeypatch.chdir(target)
        ids = [killed_sandbox(target, name) for name in ("applied", "old", "new")]
        assert main(["changes", "apply", ids[0]]) == 0
        for id, age in ((ids[1], 8 * 86400.0), (ids[2], 0.0)):
            record = records.Record(
                id,
                f"run-{age:g}",
                ("true",),
                (str(target),),
                "overlay",
                "none",
                time.time() - age,
                1,
            )
            records.write(record)
        capsys.readouterr()

        assert main(["gc"]) == 0

        out = capsys.readouterr().out
        applied = ids[0].rpartition("-")[2][: records.SHORTEST]
        assert "worth discarding: 2 runs, " in out
        assert f"  {applied}: all of it is applied, " in out
        assert re.search(r"  run-691200: it is old, \d+\.\d KiB\n", out)
        assert "run-0:" not in out
        assert "next: podbot changes show run-0; then" in out, "what is worth it was told above"
        (line,) = [line for line in out.splitlines() if line.startswith("  podbot changes discard")]
        assert main(["changes", *line.split()[2:]]) == 0
        assert [layer.id for layer in layers.found()] == ids[2:]


def test_nothing_to_do_is_said_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out == "would remove: 0, kept for their changes: 0, in use: 0\n"


def test_half_made_layers_go_once_they_are_old(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, young = "20260101-000000-00000000", "20260101-000000-11111111"
    trash = f".trash-{old}"
    for name, age in ((old, 3600), (young, 0)):
        (root / name).mkdir()
        os.utime(root / name, (time.time() - age,) * 2)
    (root / trash).mkdir()

    assert fates(capsys) == {old: "removed", trash: "removed"}
    assert [entry.name for entry in root.iterdir()] == [young]


def test_control_groups_of_the_dead_are_removed_and_of_the_living_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Ordinary folders behave like groups here: the sweep lists them and calls rmdir.
    dead = subprocess.Popen(["true"])
    dead.wait()
    for pid in (dead.pid, os.getpid()):
        (tmp_path / f"podbot-{pid}-abcd").mkdir()
    monkeypatch.setattr(cgroups, "hierarchy", lambda: cgroups.Hierarchy(2, {"pids": tmp_path}))

    assert fates(capsys) == {f"podbot-{dead.pid}-abcd": "removed"}
    assert [entry.name for entry in tmp_path.iterdir()] == [f"podbot-{os.getpid()}-abcd"]


def test_a_path_cannot_fool_the_terminal(tmp_path: Path) -> None:
    line = gc.Line("kept", "layer", "/x", ("/a\n\x1b[2Jb",), 90000.0)

    assert "/a\\n\\x1b[2Jb, 1 d old" in gc.table([line], dry_run=False)


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.0, "3 s"), (61.0, "1 min"), (7300.0, "2 h"), (2e5, "2 d")]
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert f", {text} old" in gc.table([gc.Line("kept", "layer", "/x", (), seconds)], dry_run=True)


def test_a_layer_folder_that_cannot_be_is_a_message_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(tmp_path / "file"))

    assert main(["gc"]) == 2

    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("podbot gc: the layer folder")
    assert "remedy: set PODBOT_LAYERS" in found.err or "remedy: remove it" in found.err
    assert "Traceback" not in found.err


def test_a_layer_can_be_discarded_as_soon_as_its_sandbox_is_closed(target: Path) -> None:
    for _ in range(20):
        with OverlaySandbox(target) as sandbox:
            sandbox.write("file", "changed")
        assert sandbox.layer is not None
        sandbox.layer.discard()

    assert layers.found() == []


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["gc", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        assert "podbot gc --dry-run" in capsys.readouterr().out


def everything_in(*folders: Path) -> dict[str, tuple[int, int, int]]:
    """Every file of some folders, with what any change of it would change."""
    found = {}
    for folder in folders:
        for where, *names in os.walk(folder):
            for name in (".", *names[0], *names[1]):
                path = os.path.join(where, name)
                stat = os.lstat(path)
                found[path] = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


def test_a_dry_run_changes_nothing_and_starts_no_engine(
    target: Path,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the real search for an engine, which finds only what is made here
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(root))
    home, tools, state = tmp_path / "home", tmp_path / "tools", tmp_path / "state"
    for folder in (home, tools, state):
        folder.mkdir()
    podman = tools / "podman"
    podman.write_text('#!/bin/sh\nmkdir -p "$HOME/.local/share/containers"\nexit 1\n')
    podman.chmod(0o755)
    for name in ("PODBOT_ENGINE_SOCKET", "CONTAINER_HOST", "DOCKER_HOST", "CONTAINER_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(candidates, "searched", lambda _: iter(()))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PODBOT_STATE", str(state))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    killed_sandbox(target)
    killed_sandbox(target, "new.txt")
    before = everything_in(home, state, root, target)

    assert main(["gc", "--dry-run"]) == 0

    assert everything_in(home, state, root, target) == before
    out = capsys.readouterr().out
    assert "not looked at: containers: no service of Podman runs" in out
    assert "would remove: 1, kept for their changes: 1" in out


def test_a_dry_run_says_what_was_cut_short_and_leaves_it_so(
    target: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as state:
        monkeypatch.setenv("PODBOT_STATE", state)
        (target / "one").write_text("1")
        (target / "two").write_text("2")
        id = killed_sandbox(target, "one", "two")
        killed = subprocess.run([sys.executable, "-c", KILLED_APPLY, id], check=False)
        assert killed.returncode == -signal.SIGKILL
        before = everything_in(Path(state), root, target)

        assert main(["gc", "--dry-run"]) == 0

        assert everything_in(Path(state), root, target) == before
        out = capsys.readouterr().out
        assert re.search(rf"would mend +{id}\S+: was cut short", out)


def test_what_is_applied_in_part_is_not_named_as_one_to_apply(
    target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as state:
        monkeypatch.setenv("PODBOT_STATE", state)
        monkeypatch.chdir(target)
        id = killed_sandbox(target, "one", "two")
        assert main(["changes", "apply", id, "one"]) == 0
        capsys.readouterr()

        assert main(["gc"]) == 0

        assert "next:" not in capsys.readouterr().out
        assert main(["changes", "undo", id]) == 0
        assert main(["gc"]) == 0
        word = id.rpartition("-")[2][:6]
        assert f"next: podbot changes show {word}; then" in capsys.readouterr().out
