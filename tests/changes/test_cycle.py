"""The whole way: random trees, random edits by a real process in a real overlay, apply, undo.

What the host has after apply is exactly what the sandbox saw (names, bytes, modes, owners, times,
links of both kinds, attributes), and undo gives back exactly what was there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podbot.changes._renames import detect
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.sandbox import layers
from podbot.sandbox.layers import copying
from podbot.sandbox.overlay.launcher import OverlaySandbox

PYTHON = os.path.realpath(sys.executable)

# One program for both sides: it does what it is told to the tree, then tells what is there.
PROGRAM = r"""
import hashlib, json, os, shutil, stat, sys

HERE = os.getcwd()
ON_HOST = sys.argv[1:] == ["host"]

def leads_out(verb, path, rest):
    "Whether a link on the way leads out of the folder, where no sandbox holds it back."
    places = [os.path.dirname(path)]
    if verb in ("write", "append", "hole", "mode", "note", "move"):
        places.append(path)  # these follow a link at the end, too
    if verb in ("name", "move"):
        places.append(os.path.dirname(rest[0]))
    return any(not (os.path.realpath(place) + "/").startswith(HERE + "/") for place in places)

def edit(step):
    verb, path, *rest = step
    if ON_HOST and leads_out(verb, path, rest):
        return
    try:
        if verb in ("write", "append", "hole") and stat.S_ISFIFO(os.stat(path).st_mode):
            return  # it would wait for a reader
    except OSError:
        pass
    try:
        if verb == "write":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "w") as file: file.write(rest[0])
        elif verb == "append":
            with open(path, "a") as file: file.write(rest[0])
        elif verb == "remove":
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            shutil.rmtree(path) if is_folder else os.unlink(path)
        elif verb == "folder":
            os.makedirs(path)
        elif verb == "link":
            os.symlink(rest[0], path)
        elif verb == "name":
            os.link(rest[0], path, follow_symlinks=False)
        elif verb == "move":
            shutil.move(rest[0], path)
        elif verb == "mode":
            if not os.path.islink(path): os.chmod(path, rest[0])
        elif verb == "time":
            os.utime(path, ns=(rest[0], rest[0]), follow_symlinks=False)
        elif verb == "note":
            if not os.path.islink(path): os.setxattr(path, "user.note", rest[0].encode())
        elif verb == "pipe":
            os.mkfifo(path)
        elif verb == "hole":
            with open(path, "ab") as file: file.truncate(rest[0])
        elif verb == "replace":
            edit(["remove", path]); edit([rest[0], path, rest[1]])
    except (OSError, shutil.Error, ValueError):
        pass  # steps are random: many make no sense, and then nothing happens

def look(folder):
    found, files = {}, {}
    paths = [folder]
    while paths:
        path = paths.pop()
        facts = os.lstat(path)
        name = os.path.relpath(path, folder)
        row = [stat.S_IFMT(facts.st_mode), stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid]
        row.append(facts.st_mtime_ns)
        try:
            if stat.S_ISREG(facts.st_mode):
                files.setdefault(facts.st_ino, []).append(name)
                with open(path, "rb") as file: row.append(hashlib.sha256(file.read()).hexdigest())
            elif stat.S_ISLNK(facts.st_mode):
                row.append(os.readlink(path))
            elif stat.S_ISDIR(facts.st_mode):
                entries = [os.path.join(path, entry) for entry in os.listdir(path)]
                for entry in entries: os.lstat(entry)  # a folder may tell names and no more
                paths += entries
            if not stat.S_ISLNK(facts.st_mode):
                names = [x for x in os.listxattr(path) if x == "user.note"]
                row.append([os.getxattr(path, x).hex() for x in names])
        except PermissionError:
            row.append("closed")
        found[name] = row
    found["same files"] = sorted(sorted(names) for names in files.values() if len(names) > 1)
    return found

os.umask(0o022)
for step in json.loads(sys.stdin.read()): edit(step)
print(json.dumps(look(".")))
"""

NAMES = ["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "n w", "ü\n'\"", "-rf", "\udcff", "l" * 255]
names = st.sampled_from(NAMES)
texts = st.sampled_from(["", "one\n", "two\nlines\n", "no end", "x" * 5000])
steps = st.one_of(
    st.tuples(st.just("write"), names, texts),
    st.tuples(st.just("write"), names, texts),
    st.tuples(st.just("append"), names, texts),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("folder"), names),
    st.tuples(st.just("link"), names, st.sampled_from(["a", "../..", "/etc/passwd", "nowhere"])),
    st.tuples(st.just("name"), names, names),
    st.tuples(st.just("move"), names, names),
    st.tuples(st.just("mode"), names, st.sampled_from([0o755, 0o644, 0o600, 0o500, 0o4755, 0o000])),
    st.tuples(st.just("time"), names, st.integers(0, 2**31 * 10**9)),
    st.tuples(st.just("note"), names, st.sampled_from(["", "x", "yy"])),
    st.tuples(st.just("pipe"), names),
    st.tuples(st.just("hole"), names, st.sampled_from([0, 3, 100_000])),
    st.tuples(
        st.just("replace"), names, st.sampled_from(["write", "folder", "link"]), st.just("t")
    ),
)


def on_host(folder: Path, work: list[Any]) -> Any:
    done = subprocess.run(
        [PYTHON, "-I", "-c", PROGRAM, "host"],
        input=json.dumps(work).encode(),
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def look(folder: Path) -> Any:
    return on_host(folder, [])


def compare(host: Any, seen: Any) -> None:
    """The host is as it was seen inside, by eyes that do not see into what is closed there.

    An overlay may show two names of one file as two files, so the host may know of more of them.
    """
    host, seen = dict(host), dict(seen)
    pairs = [set(names) for names in host.pop("same files")]
    for names in seen.pop("same files"):
        assert any(set(names) <= pair for pair in pairs), names
    shut = [name for name, row in seen.items() if row[-1] == "closed"]
    for name in list(host):
        if any(name.startswith(f"{folder}/") for folder in shut):
            del host[name]
        elif name in shut:
            host[name] = [*host[name][:5], "closed"]
    assert host == seen


def cycle(before: list[Any], inside: list[Any]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="podbot-cycle-", dir="/var/tmp")).resolve()
    try:
        original = on_host(folder, before)
        with OverlaySandbox(folder) as sandbox:
            argv = [PYTHON, "-I", "-c", PROGRAM]
            result = sandbox.exec(argv, stdin=json.dumps(inside), timeout=60)
            assert result.ok, result
            seen = json.loads(result.stdout)
            layer = sandbox.layer
            assert layer is not None
        assert look(folder) == original, "the host is untouched"
        if layer.path.exists():  # an empty one is gone
            changes = detect(capture(layer))
            if changes:
                applied = apply(changes, allow_flagged=True)
                assert not applied.skipped
                compare(look(folder), seen)
                assert not capture(layer), "nothing is left to apply"
                undo(layer.id)
                assert look(folder) == original
                again = apply(detect(capture(layer)), allow_flagged=True)
                assert not again.skipped, "what podbot itself put back is no drift"
                compare(look(folder), seen)
                undo(layer.id)
                assert look(folder) == original
            layer.discard()
    finally:
        layers.remove(folder)


OUTWARD = [
    [["link", "a", "{outside}"], ["write", "a", "x" * 5000], ["append", "a", "more"]],
    [["link", "a", "{outside}"], ["hole", "a", 100_000], ["mode", "a", 0o000], ["note", "a", "x"]],
    [["link", "d", "{folder}"], ["write", "d/outside", "x"], ["remove", "d/outside"]],
    [["link", "d", ".."], ["folder", "d/e/z"], ["time", "d/outside", 5], ["pipe", "d/y"]],
    [["link", "d", ".."], ["move", "a", "d/outside"], ["name", "b", "d/outside"]],
    [["link", "d", ".."], ["write", "a", "x"], ["move", "d", "a"], ["link", "d/x", "nowhere"]],
    [["link", "d", "../into"], ["write", "a", "x"], ["move", "a", "d"], ["name", "d/a", "a"]],
    [["link", "d", ".."], ["replace", "d/outside", "write", "t"], ["mode", "d/outside", 0o777]],
]


@pytest.mark.parametrize("work", OUTWARD, ids=lambda work: " ".join(work[0]))
def test_what_is_replayed_on_the_host_stays_in_its_folder(target: Path, work: list[Any]) -> None:
    (target / "outside").write_text("kept")
    (target / "into").mkdir()
    folder = target / "folder"
    folder.mkdir()

    def names() -> Any:
        """All but the times of the folder that was worked in."""
        found = look(target)
        return [found[name] for name in (".", "outside", "into")], sorted(
            name for name in found if not name.startswith("folder/")
        )

    before = names()
    told = json.dumps(work).replace("{outside}", str(target / "outside"))
    on_host(folder, json.loads(told.replace("{folder}", str(target))))

    assert names() == before


def test_a_folder_whose_names_can_be_read_and_nothing_else() -> None:
    cycle([["write", "d/x", "one\n"], ["mode", "d", 0o644]], [["write", "a", "x"]])
    cycle([["write", "d/x", "one\n"]], [["write", "a", "x"], ["mode", "d", 0o644]])


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(before=st.lists(steps, max_size=14), inside=st.lists(steps, min_size=1, max_size=10))
def test_apply_gives_what_the_sandbox_saw_and_undo_what_was_there(
    before: list[Any], inside: list[Any]
) -> None:
    cycle(before, inside)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=st.lists(steps, max_size=14), inside=st.lists(steps, min_size=1, max_size=10))
def test_the_same_for_a_layer_that_is_a_copy(before: list[Any], inside: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "needed", lambda targets: "the test wants it")
        # Not what a copy leaves out, nor what cannot be read and so not be copied.
        copied = [step for step in before if step[0] not in ("pipe", "name") and step[-1] != 0]
        cycle(copied, inside)
