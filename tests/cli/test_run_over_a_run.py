"""`podbot run --in X --discard`: it works over what X changed, and X stays exactly as it was."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, Terminal, ran, workplace

from podbot import api, changes
from podbot.errors import Kind, LaunchError
from podbot.runs import records
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer, copying
from podbot.sandbox.overlay.launcher import OverlaySandbox

BEFORE = """
mv numbers counted; echo more >> counted; rm -r old; mkdir old; echo anew > old/three
ln counted again; mkdir -p deep/er; echo d > deep/er/d; chmod 750 deep; ln -s deep shallow
mkdir shut; echo s > shut/s; chmod 000 shut; mkfifo pipe; touch -d 2001-01-01 deep .
chmod 711 .
"""
SEEN = """
set -e
test ! -e numbers; tail -n 1 counted; ls old; stat -c '%a %n' . deep; stat -c %h counted
readlink shallow; test -p pipe; cat note 2>/dev/null || true
"""
TOLD = ["more", "three", "711 .", "750 deep", "2", "deep"]
WORK = """
set -e
chmod 700 shut; rm -r shut deep pipe; echo gone > counted; rm again; mv old elsewhere; rm -r src
mkdir old; echo x > old/x; chmod 700 .; echo new > new; touch -d 2020-02-02 .
"""


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def bits(layer: Layer) -> dict[str, tuple[object, ...]]:
    """Everything of a layer, but when it was looked at; and folders that are closed, too."""
    found: dict[str, tuple[object, ...]] = {}
    for where, folders, files in os.walk(layer.path):
        for name in (".", *folders, *files):
            path = os.path.join(where, name)
            facts = os.lstat(path)
            marks = [
                (each, os.getxattr(path, each, follow_symlinks=False))
                for each in os.listxattr(path, follow_symlinks=False)
            ]
            what = b""
            if stat.S_ISREG(facts.st_mode):
                what = hashlib.sha256(Path(path).read_bytes()).digest()
            elif stat.S_ISLNK(facts.st_mode):
                what = os.fsencode(os.readlink(path))
            found[os.path.relpath(path, layer.path)] = (
                facts.st_mode, facts.st_ino, facts.st_uid, facts.st_gid, facts.st_nlink,
                facts.st_size, facts.st_rdev, facts.st_mtime_ns, sorted(marks), what,
            )  # fmt: skip
    return found


def layer_of(id: str) -> Layer:
    layer = layers.get(id)
    assert layer is not None
    return layer


def podbot(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PODBOT, *words], capture_output=True, text=True, check=False, cwd=project
    )


def test_it_sees_what_the_run_changed_and_leaves_it_bit_for_bit(project: Path) -> None:
    id = ran(project, BEFORE)
    record, before = records.read(id), bits(layer_of(id))

    seen = podbot(project, "run", "--in", id, "--discard", "--", "sh", "-c", SEEN + WORK)

    assert seen.returncode == 0, seen.stderr
    assert seen.stdout.split("\n")[:-1] == TOLD
    assert "discarded what was changed just now" in seen.stderr
    assert bits(layer_of(id)) == before
    assert records.read(id) == record
    # Each time anew, and nothing else is left.
    again = podbot(project, "run", "--in", id, "--discard", "--", "sh", "-c", SEEN)
    assert again.stdout == seen.stdout
    assert [entry.id for entry in records.entries()] == [id]


def test_what_was_changed_once_more_in_the_run_is_seen_too(project: Path) -> None:
    id = ran(project, "echo one > note; setfattr -n user.n -v 1 note 2>/dev/null; true")
    assert podbot(
        project, "run", "--in", id, "--keep", "--", "sh", "-c", "echo two >> note; rm numbers"
    ).returncode == 0  # fmt: skip
    before = bits(layer_of(id))

    done = podbot(
        project, "run", "--in", id, "--discard", "--json", "--", "sh", "-c", "cat note; ls; rm -r *"
    )

    assert done.stdout.split() == ["one", "two", "note", "old", "src"]
    assert json.loads(done.stderr)["outcome"] == "discarded"
    assert bits(layer_of(id)) == before


def test_a_copy_stays_as_it_was_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(copying, "needed", lambda _: "a test wants a copy")
        with OverlaySandbox(project) as sandbox:
            sandbox.write("numbers", "of the copy\n")
            sandbox.remove("src", recursive=True)
    layer = sandbox.layer
    assert layer is not None
    assert layer.method == "copy"
    before = bits(layer)

    with OverlaySandbox(layer=layer, discard=True) as over:
        assert over.read("numbers") == b"of the copy\n"
        assert not over.exec(["ls", "src"]).ok
        assert over.exec(["sh", "-c", "rm -r *; echo x > x; chmod 700 ."]).ok

    assert bits(layer) == before
    assert layers.found() == [layer]
    assert {(each.kind, each.path) for each in changes.read(layer)} >= {("modified", "numbers")}


def test_the_run_is_held_meanwhile(project: Path) -> None:
    id = ran(project, "echo x > x")
    layer = layer_of(id)

    with OverlaySandbox(layer=layer, discard=True) as sandbox:
        assert layer.live
        with pytest.raises(LaunchError) as caught, OverlaySandbox(layer=layer):
            pass
        assert caught.value.kind is Kind.IN_USE
        assert podbot(project, "changes", "discard", id).returncode == 2
        refused = podbot(project, "run", "--in", id, "--", "true")
        assert refused.returncode == 125
        assert "still works: its sandbox is in use\n" in refused.stderr
        assert "go on in it once it has ended" in refused.stderr
        assert sandbox.read("x") == b"x\n"

    assert not layer.live
    with OverlaySandbox(layer=layer):
        pass


def test_a_start_that_fails_lets_go_of_the_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of(ran(project, "echo x > x"))
    before = bits(layer)
    monkeypatch.setattr(layers, "stand_on", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))

    with pytest.raises(LaunchError), OverlaySandbox(layer=layer, discard=True):
        pass

    assert not layer.live
    assert bits(layer) == before
    assert [each.name for each in layers.entries()] == [layer.id]


def test_a_kill_leaves_the_run_and_nothing_that_looks_like_one(project: Path) -> None:
    id = ran(project, BEFORE)
    before = bits(layer_of(id))
    words = ["run", "--in", id, "--discard", "--", "sh", "-c", f"{WORK} echo done; exec sleep 600"]
    running = subprocess.Popen([*PODBOT, *words], stdout=subprocess.PIPE, cwd=project)
    assert running.stdout is not None
    with running.stdout:
        assert running.stdout.readline() == b"done\n"
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert running.stdout.read() == b""  # all that was inside is dead

    assert bits(layer_of(id)) == before
    assert [each.id for each in records.entries()] == [id]
    known = [(change.kind, change.path) for change in changes.read(layer_of(id))]
    looked_at = bits(layer_of(id))  # a look opens what was closed, and remembers that it was
    while len(layers.entries()) > 1:  # until the zygote has let go of it
        assert podbot(project, "gc").returncode == 0
    assert bits(layer_of(id)) == looked_at
    assert [(change.kind, change.path) for change in changes.read(layer_of(id))] == known


def test_a_program_can_do_the_same(project: Path) -> None:
    id = ran(project, "echo x > x")
    before = bits(layer_of(id))

    outcome = api.run(api.RunRequest(("rm", "x"), continue_in=id, discard=True))
    fresh = api.run(api.RunRequest(("touch", "y"), targets=(project,), discard=True))

    assert (outcome.exit_status, outcome.layer, fresh.layer) == (0, None, None)
    assert bits(layer_of(id)) == before
    assert [each.id for each in records.entries()] == [id]


def test_the_menu_says_that_all_of_the_run_would_go(project: Path) -> None:
    id = ran(project, "echo x > x; echo y > y")
    terminal = Terminal([*PODBOT, "run", "--in", id, "--", "touch", "z"], cwd=project)
    terminal.until("[d]iscard")
    terminal.send("d\n")
    called = records.find(id).called
    question = f"throw all of {called}, 3 changes, away for good, those of 1 earlier command too?"
    terminal.until(question)
    terminal.send("n\n")
    terminal.until("[d]iscard")
    terminal.send("k\n")
    assert terminal.end() == 0
    assert len(changes.read(layer_of(id))) == 3
