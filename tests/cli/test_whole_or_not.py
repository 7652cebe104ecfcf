"""What podbot makes is there whole or not at all: also when whoever makes it is killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, ran, workplace

from podbot.review import _named_files as files
from podbot.review._named_files import new_file as whole_file
from podbot.runs import records
from podbot.sandbox import layers
from podbot.sandbox.layers import baseline, copying
from podbot.sandbox.overlay.launcher import OverlaySandbox

EDITS = "echo new > added; echo more >> numbers; head -c 300000 /dev/urandom > large"


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def killed_when(doing: Callable[[], object]) -> None:
    """Do it in a process of its own, which must be killed by it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads do not matter here
        child = os.fork()
    if child == 0:
        try:
            doing()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def podbot(*words: str, dies_at: str = "") -> subprocess.CompletedProcess[str]:
    """The real command; ``dies_at`` names a call of Python's at which it is killed."""
    command = [*PODBOT, *words]
    if dies_at:
        program = (
            "import os, signal, sys\n"
            f"os.{dies_at} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
            "from podbot.cli import main\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def listed() -> list[dict[str, object]]:
    done = podbot("changes", "list", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)["runs"]
    return found


# Saving


@pytest.mark.parametrize("name", ["work.tar", "work.patch"])
@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_save_that_is_killed_leaves_nothing(
    project: Path, tmp_path: Path, name: str, call: str
) -> None:
    id = ran(project, EDITS)

    assert podbot("changes", "save", id, str(tmp_path / name), dies_at=call).returncode == -9
    assert list(tmp_path.iterdir()) == []

    assert podbot("changes", "save", id, str(tmp_path / name)).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def test_what_took_the_name_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "file"

    with pytest.raises(FileExistsError), whole_file(str(file)) as out:
        out.write(b"ours")
        file.write_bytes(b"theirs")

    assert file.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture
def without_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refusing(path: str, flags: int, *arguments: int, **options: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no files without names here")
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.usefixtures("without_nameless_files")
def test_where_every_file_has_a_name_a_dead_writers_goes_with_the_next(tmp_path: Path) -> None:
    def writes() -> None:
        with whole_file(str(tmp_path / "file")) as out:
            out.write(b"some")
            out.flush()
            die()

    killed_when(writes)
    [left] = tmp_path.iterdir()
    assert left.name != "file"
    long_ago = time.time() - 2 * files._SURELY_LOCKED
    os.utime(left, (long_ago, long_ago))
    other = tmp_path / f"{files._DRAFT}{'0' * 32}"
    other.write_bytes(b"of one who still writes")
    os.utime(other, (long_ago, long_ago))
    with open(other, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with whole_file(str(tmp_path / "file")) as out:
            out.write(b"all")

    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "file", other])
    assert (tmp_path / "file").read_bytes() == b"all"


@pytest.mark.usefixtures("without_nameless_files")
def test_where_every_file_has_a_name_none_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(FileExistsError), whole_file(str(file)) as out:
        out.write(b"ours")
        file.write_bytes(b"theirs")
    assert file.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [file]


# Loading


@pytest.fixture
def archive(project: Path, tmp_path: Path) -> Path:
    """What was saved of a run that is gone."""
    id = ran(project, EDITS)
    file = tmp_path / "work.tar"
    assert podbot("changes", "save", id, str(file)).returncode == 0
    assert podbot("changes", "discard", id).returncode == 0
    return file


def test_a_load_that_is_killed_half_way_leaves_no_run(project: Path, archive: Path) -> None:
    os.chmod(project, 0o755)
    data = archive.read_bytes()
    words = ("changes", "load", "/dev/stdin", "--target", str(project))
    with subprocess.Popen([*PODBOT, *words], stdin=subprocess.PIPE, bufsize=0) as load:
        assert load.stdin
        # More than a pipe holds: when all but its rest is taken, some has been unpacked.
        rest = memoryview(data)[: len(data) * 2 // 3]
        while rest:
            rest = rest[load.stdin.write(rest) :]
        load.kill()
        assert load.wait() == -signal.SIGKILL

    assert listed() == []
    [left] = layers.root().glob("2*")
    assert layers.get(left.name) is None
    assert podbot("changes", "show", left.name).returncode == 2

    assert podbot("gc").returncode == 0
    assert not left.exists()
    assert records._recorded() == []


@pytest.mark.parametrize("call", ["pwrite", "fsync", "unlink"])
def test_a_load_that_is_killed_is_there_whole_or_not_at_all(
    project: Path, archive: Path, call: str
) -> None:
    words = ("changes", "load", str(archive), "--as-saved")
    assert podbot(*words, dies_at=call).returncode == -9

    runs = listed()
    assert all(run["changes_count"] == 3 and run["command"] for run in runs)
    # The next load needs no other command before it, and leaves nothing of what went wrong.
    assert podbot(*words).returncode == 0
    assert len(listed()) == len(runs) + 1
    assert len([*layers.root().glob("*2*-*")]) == len(runs) + 1


def test_a_layer_that_is_still_being_filled_is_not_swept(project: Path) -> None:
    layer, lock = layers.create((str(project),), "archive", False, filling=True)
    try:
        assert layers.sweep_half_filled() == ()
        assert layers.sweep().removed == ()
        assert layers.found() == []
    finally:
        os.close(lock)
    assert layers.sweep_half_filled() == (layer.id,)
    assert not layer.path.exists()


# Copies


def test_a_copy_that_is_cut_short_is_no_layer(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "needed", lambda _: "a test wants a copy")

    def open_killed() -> None:
        monkeypatch.setattr(baseline.Baseline, "write", die)
        with OverlaySandbox(project):
            pass

    killed_when(open_killed)

    assert layers.found() == []
    [left] = layers.root().glob("2*")
    assert any((left / "0.upper").iterdir())
    assert layers.sweep().removed == (left.name,)
    assert not left.exists()


# Throwing away


def test_a_discard_that_is_killed_leaves_nothing_that_looks_like_a_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layers.get(ran(project, EDITS))
    assert layer is not None

    def discard_killed() -> None:
        monkeypatch.setattr(layers, "remove", die)
        layer.discard()

    killed_when(discard_killed)

    assert layers.found() == []
    assert layers.sweep().removed != ()
    assert [*layers.root().glob("*2*-*")] == []
