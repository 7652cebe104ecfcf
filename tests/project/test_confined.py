"""The tests can write to their own places and to nothing else, and a run that did is red."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import confined
import pytest
from suites import suite

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can have a mount namespace")


def is_confined_by_mounts() -> bool:
    return os.environ.get(confined.WITHIN) == confined.SHARED


@only_root
@pytest.mark.parametrize("place", ["/etc", "/usr", "/root", "/home", "/var/lib", "/dev", "/"])
def test_root_cannot_write_to_the_machine(place: str) -> None:
    if not is_confined_by_mounts():
        pytest.skip("root has no mount namespace of its own here")
    with pytest.raises(OSError) as caught:
        os.open(f"{place}/podbot-tests-were-here", os.O_CREAT | os.O_WRONLY | os.O_EXCL)
    assert caught.value.errno == errno.EROFS


OUTSIDE = """
import os, pathlib, subprocess, sys, errno

def test_what_is_started_is_confined_too():
    code = "open('/etc/podbot-tests-were-here', 'w')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Read-only file system" in done.stderr

def test_links_lead_nowhere(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    try:
        (tmp_path / "link").write_text("x" * 5000)
    except OSError as error:
        assert error.errno == errno.EROFS

def test_own_places_are_writable(tmp_path):
    for folder in (tmp_path, pathlib.Path.home(), pathlib.Path("/dev/shm"), pathlib.Path.cwd()):
        (folder / "mine").write_text("x")
        (folder / "mine").unlink()
    for folder in ("/tmp", "/var/tmp"):
        assert not [name for name in os.listdir(folder) if name.startswith("outside")]
"""


@only_root
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_links_and_children_do_not_lead_out(tmp_path: Path, options: tuple[str, ...]) -> None:
    if not is_confined_by_mounts():
        pytest.skip("root has no mount namespace of its own here")
    before = Path("/etc/passwd").read_bytes()

    done = suite(tmp_path, OUTSIDE, *options, afresh=True)

    assert done.returncode == 0, done.stdout
    assert Path("/etc/passwd").read_bytes() == before


IMPATIENT = """
import sys; sys.path.insert(0, ".")
import confined
confined.PATIENCE = 0.1
"""
AT_THE_END = """
import atexit, pathlib
place = pathlib.Path.cwd() / "written at the end"
atexit.register(place.write_text, "as coverage does")
"""


def test_the_checkout_can_be_written_to_until_the_end(tmp_path: Path) -> None:
    done = suite(tmp_path, "def test_it(): pass", before=AT_THE_END, afresh=True)

    assert done.returncode == 0, done.stdout
    assert not done.stderr
    assert (tmp_path / "written at the end").read_text() == "as coverage does"


LEAVES = """
import os, tempfile

def test_it():
    folder = tempfile.mkdtemp(prefix="forgotten-", dir="/var/tmp")
    open(os.path.join(folder, "file"), "w").close()
"""


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_is_left_in_the_shared_folder_fails_the_run_and_is_removed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    home.mkdir()

    done = suite(tmp_path, LEAVES, *options, before=IMPATIENT, afresh=True, HOME=str(home))

    assert done.returncode == 1, done.stdout
    assert "left behind: /var/tmp/forgotten-" in done.stdout
    assert not [name for name in os.listdir("/var/tmp") if name.startswith("forgotten-")]
    assert os.listdir(home) == []


HOME = """
import os, pathlib

def test_the_home_is_not_the_real_one():
    assert pathlib.Path.home() != pathlib.Path(os.environ["REAL"])
    assert pathlib.Path.home().parent == pathlib.Path(os.environ["REAL"])
    assert not [name for name in os.environ if name.startswith("XDG_")]

def test_the_real_one():
    for canary in pathlib.Path(os.environ["REAL"]).glob(".podbot-tests-canary-*"):
        {harm}
"""
# As where root may have no namespace, and as an ordinary user.
REFUSED = """
import sys; sys.path.insert(0, ".")
import confined
confined._begin_namespace = lambda: "unshare: Operation not permitted"
"""


@pytest.mark.parametrize("harm", ["canary.unlink()", "canary.write_text('x')", "canary.chmod(0)"])
def test_a_canary_that_was_touched_fails_the_run(tmp_path: Path, harm: str) -> None:
    done = home_suite(tmp_path, harm)

    assert done.returncode == 1, done.stdout
    assert "the real home is not as it was: " in done.stdout


def test_without_a_namespace_there_are_another_home_and_a_line_that_says_so(tmp_path: Path) -> None:
    done = home_suite(tmp_path, "canary.read_text()")

    assert done.returncode == 0, done.stdout
    assert "kept from the tests: a home of their own (" in done.stdout
    assert os.listdir(tmp_path / "home") == []


def home_suite(tmp_path: Path, harm: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "home").mkdir()
    home = str(tmp_path / "home")
    test = HOME.replace("{harm}", harm)
    return suite(tmp_path, test, before=REFUSED, afresh=True, HOME=home, REAL=home)


def test_a_run_that_needs_the_machine_says_why(tmp_path: Path) -> None:
    reason = "engines need it"
    done = suite(tmp_path, "def test_it(): pass", afresh=True, PODBOT_UNCONFINED=reason)

    assert done.returncode == 0, done.stdout
    assert "the tests can write to the whole machine: engines need it" in done.stdout


def test_what_killed_runs_left_is_swept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    dead, alive = tmp_path / "podbot-tests-dead", tmp_path / "podbot-tests-alive"
    for folder in (dead, alive):
        folder.mkdir()
    canary = confined.Canary.put(tmp_path)
    (dead / "lock").write_text(f"{home}\0{canary.path}")

    confined.sweep(tmp_path)

    assert not dead.exists() and not home.exists() and not canary.path.exists()
    assert alive.exists()  # it has no lock yet: it is about to begin
