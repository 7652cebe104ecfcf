"""Whether an engine's overlay volumes are of use: told by what it is, and by what it mounted.

The changes are read from the upper layer, so it must be the kernel's overlay, with marks that this
user can read. What cannot be known beforehand (an engine set up to use fuse-overlayfs) is looked up
in the container's mount table before anything runs in it.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from podbot.engine import Engine, OverlayMount
from podbot.sandbox.container import _idmapped
from podbot.sandbox.container._target import Overlaying
from podbot.sandbox.container._workspace import Contents
from podbot.sandbox.container.settings import WORKDIR

_unfit: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()


class Unfit(Exception):
    """The overlay that was mounted cannot be reviewed; the text says why."""


def able(engine: Engine) -> Overlaying:
    """What this engine can do about overlays."""
    facts = engine.facts
    if not facts.local:
        return Overlaying("the engine is not on this machine", elsewhere=True)
    if not facts.is_podman:
        return Overlaying(f"{facts.name} has no overlay volumes")
    if not facts.rootless and os.geteuid() != 0:
        return Overlaying("only root can read the marks of an overlay that root's engine mounts")
    return Overlaying(_unfit.get(engine), "user" if facts.rootless else "trusted")


def check(engine: Engine, pid: int, contents: Contents) -> None:
    """Look at what was mounted; raises `Unfit` if its changes could not be read rightly."""
    if not isinstance(contents.mount, OverlayMount) or contents.layer is None:
        return
    kind, options = mounted(pid)
    reason = None
    if kind != "overlay" or f"upperdir={contents.mount.upper}" not in options:
        reason = f"the engine mounts overlays through {kind or 'nothing we know'}"
    elif ("userxattr" in options) != (contents.layer.traits.marks == "user"):
        reason = "the engine's overlays have marks that cannot be read"
    elif contents.view is not None and not _idmapped.seen_by(pid, WORKDIR):
        reason = "the engine does not see what podbot mounts"
    if reason is not None:
        raise refused(engine, reason)


def refused(engine: Engine, reason: str) -> Unfit:
    """No overlay of this engine's will do from now on."""
    _unfit[engine] = reason
    return Unfit(reason)


def mounted(pid: int) -> tuple[str, list[str]]:
    """The file system at the workspace of a container, and its options, by its first process."""
    for line in (
        Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    ):
        before, _, after = line.partition(" - ")
        if before.split()[4] == WORKDIR:
            kind, _, options = after.split(" ", 2)
            return kind, options.split(",")
    return "", []
