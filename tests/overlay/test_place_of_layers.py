"""The folder of layers of an ordinary user: its name in /var/tmp may be taken by a stranger."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import PYTHON, new_folder

import podbot
from podbot.config import places
from podbot.errors import Kind, LaunchError
from podbot.sandbox import layers
from podbot.sandbox.layers import _root

UID = 4321  # for whom the place is asked, without being them
NOBODY = 65534
SOURCE = Path(podbot.__file__).parent.parent


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """In place of /var/tmp; with a state folder that remembers nothing yet."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setattr(_root, "SHARED", str(folder))
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    _root.checked_root.cache_clear()
    yield folder
    _root.checked_root.cache_clear()


def test_the_usual_place_is_taken_where_nobody_was_first(shared: Path) -> None:
    assert _root.chosen(None, UID) == shared / f"podbot-{UID}"
    assert not (places.state_place() / _root.REMEMBERED).exists()


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_name_a_stranger_took_sends_us_to_another_that_is_remembered(
    shared: Path, kind: str
) -> None:
    usual = shared / f"podbot-{UID}"
    if kind == "folder":
        usual.mkdir()  # ours in truth, and so not of the user who is asked for
    elif kind == "file":
        usual.touch()
    else:
        usual.symlink_to("/")

    first = _root.chosen(None, UID)

    assert first.name.startswith(f"{usual.name}-") and first.parent == shared
    assert [_root.chosen(None, UID) for _ in range(3)] == [first] * 3
    usual.unlink() if kind != "folder" else usual.rmdir()
    assert _root.chosen(None, UID) == first  # what is kept there must be found again


def test_a_file_of_ours_that_a_stranger_linked_there_denies_nothing_either(shared: Path) -> None:
    ours = shared / "ours"
    ours.touch()
    usual = shared / f"podbot-{os.getuid()}"
    os.link(ours, usual)

    assert _root._in_shared(os.getuid()).name.startswith(f"{usual.name}-")


def test_one_that_is_taken_in_turn_is_left_as_well(shared: Path) -> None:
    (shared / f"podbot-{UID}").mkdir()
    first = _root.chosen(None, UID)
    first.mkdir()

    second = _root.chosen(None, UID)

    assert second not in (first, shared / f"podbot-{UID}")
    assert _root.chosen(None, UID) == second


def test_what_is_remembered_leads_nowhere_else(shared: Path) -> None:
    places.state_folder()
    for text in ("/etc", f"{shared}/podbot-{UID}-../../etc", "", "\xff"):
        (places.state_place() / _root.REMEMBERED).write_text(text, encoding="latin-1")
        assert _root.chosen(None, UID) == shared / f"podbot-{UID}"


def test_a_memory_that_cannot_be_kept_is_a_named_error(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / f"podbot-{UID}").mkdir()
    monkeypatch.setenv(places.STATE_VARIABLE, "/proc/nowhere")
    with pytest.raises(LaunchError) as caught:
        _root.chosen(None, UID)
    assert caught.value.kind is Kind.LAYER_FAILED
    assert layers.ROOT_VARIABLE in str(caught.value.remedy)


OPEN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from podbot.sandbox.layers import _root
_root.SHARED = sys.argv[3]
from podbot.sandbox import layers
from podbot.sandbox.overlay.launcher import OverlaySandbox
with OverlaySandbox(sys.argv[2]) as sandbox:
    sandbox.write("made", b"x")
    found = [str(sandbox.layer.path.parent), sandbox.exec(["ls", "-A", sys.argv[3]]).stdout]
print(json.dumps(found + [[str(layer.path.parent) for layer in layers.found()]]))
sandbox.layer.discard()
"""


def as_nobody(*argv: str, home: str = "/") -> subprocess.CompletedProcess[str]:
    """Run a program as another user."""
    return subprocess.run(
        argv, capture_output=True, text=True, user=NOBODY, group=NOBODY, extra_groups=[],
        env={"HOME": home, "PATH": "/usr/bin:/bin"}, cwd="/", check=False,
    )  # fmt: skip


def runs_for_others(python: str) -> bool:
    try:
        done = as_nobody(python, "-c", "import sys; print(sys.version_info >= (3, 11))")
    except PermissionError:
        return False
    return done.stdout == "True\n"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_stranger_who_was_first_denies_nothing(tmp_path: Path) -> None:
    uid, top = NOBODY, new_folder()
    try:
        top.chmod(0o755)
        for name, mode in (("shared", 0o1777), ("target", 0o755), ("home", 0o700)):
            (top / name).mkdir()
            (top / name).chmod(mode)
        for name in ("target", "home"):
            os.chown(top / name, uid, uid)
        (top / "shared" / f"podbot-{uid}").mkdir(mode=0o777)
        shutil.copytree(SOURCE / "podbot", top / "src" / "podbot")  # a checkout may be closed
        script = top / "open.py"
        script.write_text(OPEN)
        python = next(filter(runs_for_others, (PYTHON, "/usr/bin/python3")), None)
        if python is None:
            pytest.skip("every interpreter of this machine is closed to other users")
        done = as_nobody(
            python, str(script), str(top / "src"), str(top / "target"), str(top / "shared"),
            home=str(top / "home"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        place, seen, kept = json.loads(done.stdout)
        assert Path(place).name.startswith(f"podbot-{uid}-")
        assert seen == ""
        assert kept == [place]
        assert list((top / "shared" / f"podbot-{uid}").iterdir()) == []
    finally:
        layers.remove(top)
