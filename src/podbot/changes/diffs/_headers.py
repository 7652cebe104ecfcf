"""The lines above the hunks of a file, as git writes and reads them.

Names are quoted the way git does by default, so that every header is plain ASCII. Knows states
and names, never contents.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from podbot.changes.late import expression
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.frozen import dataclass

NULL = "/dev/null"

MAX_SIZE = 512 * 1024 * 1024
"""The largest file in a patch: git holds all of it at once, and fails at 2 GiB and with patches of
1 GiB."""

Spelling = Callable[[str], str]
"""How a name is written down."""

_ODD = expression(rb"[^ !#-\[\]-~]")
_LETTERS = {
    0x07: "\\a", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0B: "\\v", 0x0C: "\\f", 0x0D: "\\r",
    0x22: '\\"', 0x5C: "\\\\",
}  # fmt: skip

# Git refuses to write these names, whole patches with them: its own folder, also as other file
# systems would spell it, and a link in place of .gitmodules.
_REFUSED = expression(r"(?:^|/)(?:\.git|git~1)[ .]*(?:[:\\/]|$)", re.IGNORECASE)
_REFUSED_LINK = expression(
    r"(?:^|/)(?:\.gitmodules[ .]*(?::.*)?|gitmod~[1-4][ .]*|gi7eba?[0-9a-f]*~[0-9]+[ .]*)$",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Names:
    """What a file is called on both sides."""

    old: str
    new: str


def names(changes: ChangeSet, change: Change) -> Names:
    """The names of a change in a diff.

    They are relative to the target. With several targets they begin with its position (``0/``,
    ``1/``, …, the order of ``changes.targets``), since the same name may be in each of them.
    """
    prefix = ""
    if len(changes.targets) > 1:
        prefix = f"{changes.targets.index(change.target)}/"
    new = prefix + change.path
    if change.kind is ChangeKind.RENAMED and change.source is not None:
        return Names(prefix + change.source, new)
    return Names(new, new)


def git_mode(state: State | None) -> str | None:
    """The mode git has for something; None for what git does not know."""
    if state is None:
        return None
    if state.type is FileType.LINK:
        return "120000"
    if state.type is FileType.FILE:
        return "100755" if state.mode & 0o100 else "100644"
    return None


def refusal(change: Change, old: bool) -> str | None:
    """Why git would not take one side of a change, and with it the whole patch."""
    state = change.old if old else change.new
    if state is None:
        return None
    path = change.path
    if old and change.kind is ChangeKind.RENAMED and change.source is not None:
        path = change.source
    is_link = state.type is FileType.LINK
    if _REFUSED.search(path) or (is_link and _REFUSED_LINK.search(path)):
        return "not a name that git writes: left out"
    # Both sides of what is too large: half of it would be another change.
    if change.kind is not ChangeKind.MODE and max(_size(change.old), _size(change.new)) > MAX_SIZE:
        return "too large for git: left out"
    return None


def is_carried(change: Change, old: bool) -> bool:
    """Whether one side of a change is something that git knows and takes."""
    state = change.old if old else change.new
    return git_mode(state) is not None and refusal(change, old) is None


def _size(state: State | None) -> int:
    return state.size if state is not None and state.type is FileType.FILE else 0


def quoted(name: str) -> str:
    """A name as git spells it: odd bytes make it a C string."""
    raw = os.fsencode(name)
    if not _ODD.search(raw):
        return name
    return _as_string(raw)


def quoted_for_git(name: str) -> str:
    """A name that git reads back whatever it is.

    Git leaves spaces as they are, and cannot always tell from its own headers where a name ends.
    """
    return _as_string(os.fsencode(name)) if " " in name else quoted(name)


def _as_string(raw: bytes) -> str:
    return '"' + "".join(map(_quoted_byte, raw)) + '"'


def _quoted_byte(byte: int) -> str:
    return _LETTERS.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")


def extended(
    change: Change, called: Names, similarity: int | None, spell: Spelling = quoted
) -> list[str]:
    """All up to the index: what happened to modes and names."""
    old, new = git_mode(change.old), git_mode(change.new)
    lines = [f"diff --git {spell('a/' + called.old)} {spell('b/' + called.new)}"]
    if old is None and new is not None:
        lines.append(f"new file mode {new}")
    elif new is None and old is not None:
        lines.append(f"deleted file mode {old}")
    elif old != new:
        lines += [f"old mode {old}", f"new mode {new}"]
    if called.old != called.new:
        lines.append(f"similarity index {similarity or 0}%")
        lines += [f"rename from {spell(called.old)}", f"rename to {spell(called.new)}"]
    return lines


def sides(change: Change, called: Names, spell: Spelling = quoted) -> list[str]:
    """The two lines that say which files the hunks are about."""
    old = NULL if git_mode(change.old) is None else _ended(spell("a/" + called.old))
    new = NULL if git_mode(change.new) is None else _ended(spell("b/" + called.new))
    return [f"--- {old}", f"+++ {new}"]


def _ended(name: str) -> str:
    # A name with a space ends in a tab, or its end could not be told from a time after it.
    return f"{name}\t" if " " in name else name
