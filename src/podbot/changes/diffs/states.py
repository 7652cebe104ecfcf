"""What differs between two states, in words: all that git's headers do not tell.

For the notes of a diff and the list of what a patch leaves out. Compares states only and reads
nothing.
"""

from __future__ import annotations

from podbot.changes.diffs.text import shown_name
from podbot.changes.model import FileType, State

PLAIN_MODES = frozenset({0o644, 0o664, 0o755, 0o775})
"""What files usually have, by one umask or another."""
PLAIN_FOLDERS = frozenset({0o700, 0o755, 0o775})
"""What folders usually have."""

WORDS = {
    FileType.FILE: "file",
    FileType.FOLDER: "folder",
    FileType.LINK: "link",
    FileType.FIFO: "FIFO",
    FileType.SOCKET: "socket",
    FileType.DEVICE: "device",
    FileType.UNSEEN: "thing that cannot be seen",
}


def differences(old: State | None, new: State) -> list[str]:
    """Modes, owners and attributes that changed, or that something new has and others have not."""
    if old is not None and old.type is not new.type:
        old = None
    found = []
    if new.type is not FileType.LINK:
        found += _mode(old, new)
    if old is not None and (old.uid, old.gid) != (new.uid, new.gid):
        found.append(f"owner {old.uid}:{old.gid} → {new.uid}:{new.gid}")
    found += _attributes(dict(old.xattrs) if old else {}, dict(new.xattrs))
    return found


def _mode(old: State | None, new: State) -> list[str]:
    if old is None:
        usual = PLAIN_FOLDERS if new.type is FileType.FOLDER else PLAIN_MODES
        return [] if new.mode in usual else [f"mode {new.mode:04o}"]
    # Git tells of the owner's right to run a file; the others usually go with it.
    is_in_patch = new.type is FileType.FILE and (old.mode ^ new.mode) & 0o100
    quiet = 0o111 if is_in_patch else 0
    return [f"mode {old.mode:04o} → {new.mode:04o}"] if (old.mode ^ new.mode) & ~quiet else []


def _attributes(old: dict[str, bytes], new: dict[str, bytes]) -> list[str]:
    found = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            found.append(f"attribute {shown_name(name)} removed")
        elif old.get(name) != new[name]:
            found.append(f"attribute {shown_name(name)} {'changed' if name in old else 'added'}")
    return found
