"""The few risks that only contents tell: install scripts of a package, the first two bytes.

Reads little, from files that a sandbox may have written; what cannot be read or understood counts
as the riskier of the two.
"""

from __future__ import annotations

import json

from podbot.changes.model import Change, ChangeKind, Contents, FileType

MAX_PACKAGE = 1 << 20
"""The largest package.json that is looked into, in bytes."""

_INSTALL = (
    "preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare",
    "dependencies",
)  # fmt: skip
"""Scripts that npm runs by itself as it installs."""


def install_scripts_changed(contents: Contents, change: Change) -> bool:
    """Whether a package.json has other install scripts than before."""
    if change.new is None or change.new.type is not FileType.FILE:
        return False
    after = _scripts(contents, change, new=True)
    if change.old is None or change.old.type is not FileType.FILE:
        return after != {}
    return after is None or after != _scripts(contents, change, new=False)


def _scripts(contents: Contents, change: Change, new: bool) -> dict[str, object] | None:
    try:
        with contents.open_new(change) if new else contents.open_old(change) as file:
            text = file.read(MAX_PACKAGE + 1)
        if len(text) > MAX_PACKAGE:
            return None
        package = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    scripts = package.get("scripts") if isinstance(package, dict) else None
    if not isinstance(scripts, dict):
        return {}
    return {name: scripts[name] for name in _INSTALL if name in scripts}


def is_script(contents: Contents, change: Change) -> bool:
    """Whether a file without an ending is a script for an interpreter, though not executable."""
    name = change.path.rpartition("/")[2]
    if "." in name.lstrip(".") or change.new is None or change.new.type is not FileType.FILE:
        return False
    if change.new.size < 3 or change.kind is ChangeKind.HARD_LINK:
        return False
    try:
        with contents.open_new(change) as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
