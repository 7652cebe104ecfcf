"""Trees to apply changes to: planted, worked on in a sandbox, and compared bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from podbot.changes.applying import journal
from podbot.changes.applying.journal import Journal
from podbot.changes.capture import capture
from podbot.changes.model import ChangeSet
from podbot.sandbox.overlay.launcher import OverlaySandbox

PYTHON = os.path.realpath(sys.executable)

# Runs here and inside a sandbox alike. Names are escaped, so that JSON can carry any of them.
LOOK = r"""
import hashlib, json, os, stat, sys

def look(root):
    found, names = {}, {}
    def visit(path):
        facts = os.lstat(path)
        inner = os.path.relpath(path, root)
        key = repr(inner)
        kind = stat.S_IFMT(facts.st_mode)
        what = None
        if stat.S_ISLNK(facts.st_mode):
            what = repr(os.readlink(path))
        elif stat.S_ISREG(facts.st_mode):
            with open(path, "rb") as file:
                what = hashlib.sha256(file.read()).hexdigest()
            names.setdefault(facts.st_ino, []).append(key)
        elif stat.S_ISDIR(facts.st_mode):
            for name in sorted(os.listdir(path)):
                visit(os.path.join(path, name))
        else:
            what = facts.st_rdev
        xattrs = {}
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith("user.") and not name.startswith("user.overlay."):
                xattrs[name] = repr(os.getxattr(path, name, follow_symlinks=False))
        mode = 0 if stat.S_ISLNK(facts.st_mode) else stat.S_IMODE(facts.st_mode)
        found[key] = [kind, mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, what, xattrs]
    visit(root)
    links = sorted(sorted(one) for one in names.values() if len(one) > 1)
    return {"paths": found, "links": links}
"""

Edit = tuple[str, str, str]
"""What to do, to which path, and with what (a text, another path, a number)."""

# Edits that make no sense where they are made are left out: the tree decides, not the test.
EDIT = r"""
import json, os, shutil, sys

def one(what, path, more):
    if what in ("write", "append"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK  # a pipe nobody reads is an error
        fd = os.open(path, flags | (os.O_APPEND if what == "append" else os.O_TRUNC), 0o644)
        os.write(fd, more.encode())
        os.close(fd)
    elif what == "remove":
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    elif what == "folder":
        os.mkdir(path)
    elif what == "link":
        os.symlink(more, path)
    elif what == "hard":
        os.link(more, path, follow_symlinks=False)
    elif what == "move":
        os.rename(path, more)
    elif what == "mode" and not os.path.islink(path):
        os.chmod(path, int(more, 8) | (0o500 if os.path.isdir(path) else 0o400))
    elif what == "time":
        os.utime(path, ns=(int(more), int(more)), follow_symlinks=False)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "note" and not os.path.islink(path) and os.path.isfile(path):
        os.setxattr(path, "user.note", more.encode())

def edit(edits):
    os.umask(0o022)
    for each in edits:
        try:
            one(*each)
        except OSError:
            pass
"""

_here: dict[str, Any] = {}
exec(LOOK, _here)  # noqa: S102 - the program above


def keep_in_the_state_folder(own: Journal, device: int) -> Path:
    """What `Journal.store_for` is where no folder beside the target can be had."""
    assert os.lstat(own.folder).st_dev != device
    (own.folder / journal.KEPT).mkdir(mode=0o700, exist_ok=True)
    return own.folder / journal.KEPT


def look(folder: Path) -> dict[str, Any]:
    """All that must be equal of two trees that are the same, whatever their inodes."""
    found = _here["look"](os.fspath(folder))
    assert isinstance(found, dict)
    return found


def worked_on(
    target: Path, work: str | list[Edit], **options: Any
) -> tuple[ChangeSet, dict[str, Any]]:
    """The changes a script or edits made in a sandbox, and what the sandbox saw at the end."""
    with OverlaySandbox(target, **options) as sandbox:
        if isinstance(work, str):
            result = sandbox.exec(["bash", "-ec", work])
        else:
            argv = [PYTHON, "-I", "-S", "-c", EDIT + "edit(json.load(sys.stdin))"]
            result = sandbox.exec(argv, stdin=json.dumps(work))
        assert result.ok, result
        argv = [PYTHON, "-I", "-S", "-c", LOOK + "json.dump(look(sys.argv[1]), sys.stdout)"]
        seen = sandbox.exec([*argv, str(target)])
        assert seen.ok, seen
    assert sandbox.layer is not None
    return capture(sandbox.layer), json.loads(seen.stdout)


def plant(target: Path, edits: list[Edit]) -> None:
    """Make the same edits on the host."""
    argv = [sys.executable, "-I", "-S", "-c", EDIT + "edit(json.load(sys.stdin))"]
    subprocess.run(argv, cwd=target, input=json.dumps(edits), text=True, check=True)


CLOCK_REALTIME_COARSE = 5


def a_moment_after(stamped: int) -> None:
    """Wait until the kernel would stamp a file with a later time than this one.

    Many kernels stamp with the time of the last tick, so two changes in one tick look like one.
    No person is that quick; a test is.
    """
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= stamped:
        time.sleep(0.001)


def open_in(folder: Path) -> list[str]:
    """What this process has open there: what an earlier test left to be closed is elsewhere."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile, or that of this look
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path == str(folder) or path.startswith(f"{folder}/")]


def nothing_left_in(folder: Path) -> bool:
    """Whether no temporary name is left anywhere."""
    return not [name for _, *names in os.walk(folder) for one in names for name in one
                if name.startswith(".podbot-")]  # fmt: skip
