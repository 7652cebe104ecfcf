"""Trees to apply changes to: planted, worked on in a sandbox, and compared bit for bit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

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

_here: dict[str, Any] = {}
exec(LOOK, _here)  # noqa: S102 - the program above


def look(folder: Path) -> dict[str, Any]:
    """All that must be equal of two trees that are the same, whatever their inodes."""
    found = _here["look"](os.fspath(folder))
    assert isinstance(found, dict)
    return found


def worked_on(target: Path, script: str, **options: Any) -> tuple[ChangeSet, dict[str, Any]]:
    """The changes a script made in a sandbox, and what the sandbox saw at the end."""
    with OverlaySandbox(target, **options) as sandbox:
        result = sandbox.exec(["bash", "-ec", script])
        assert result.ok, result
        argv = [PYTHON, "-I", "-S", "-c", LOOK + "json.dump(look(sys.argv[1]), sys.stdout)"]
        seen = sandbox.exec([*argv, str(target)])
        assert seen.ok, seen
    assert sandbox.layer is not None
    return capture(sandbox.layer), json.loads(seen.stdout)


def nothing_left_in(folder: Path) -> bool:
    """Whether no temporary name is left anywhere."""
    return not [name for _, *names in os.walk(folder) for one in names for name in one
                if name.startswith(".podbot-")]  # fmt: skip
