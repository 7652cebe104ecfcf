"""What steers git, told apart from what it merely stores: commits are no risk, hooks are.

Covers git's own folder under any name: ``.git``, those of submodules and worktrees inside it, and
any folder that git would take for a repository because of what lies in it. Looks at names and
states only; git is never run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from podbot.changes.late import expression
from podbot.changes.model import Change, ChangeKind, FileType
from podbot.changes.risk.paths import parts_of
from podbot.changes.risk.rules import Level

Finding = tuple[Level, str]

_STORED = frozenset({"objects", "refs", "logs", "rr-cache", "lfs", "annex", "reftable"})
"""Folders in which names are hashes and branches, and mean nothing."""

_OBEYED = {
    "config": "git obeys these settings at every command: they can name programs to run",
    "config.worktree": "git obeys these settings at every command: they can name programs to run",
    "commondir": "it sends git to another folder for its settings and hooks",
    "gitdir": "it tells git which folder belongs to which repository",
}
_WHEN = {
    "pre-commit": "at the next commit",
    "prepare-commit-msg": "at the next commit",
    "commit-msg": "at the next commit",
    "post-commit": "after the next commit",
    "post-checkout": "at the next checkout",
    "post-merge": "at the next merge or pull",
    "pre-merge-commit": "at the next merge",
    "post-rewrite": "at the next amend or rebase",
    "pre-rebase": "at the next rebase",
    "pre-push": "at the next push",
    "post-index-change": "at nearly every command",
    "fsmonitor-watchman": "at nearly every command",
    "reference-transaction": "at nearly every command",
}
FALSIFIED = "git never changes what it has stored: this falsifies its history"
_REPLACES = "it makes git show other commits or files in the place of those it has"
LOOK_ALIKE = "git takes this folder for a repository and obeys the settings and hooks in it"
POINTER = "git takes its settings and hooks from wherever this points"
_LINK = "it is a link in git's own folder: git uses what it points at"


def inside(rest: Sequence[str], change: Change) -> Finding | None:
    """What a change does to git; ``rest`` are the names of its path within git's own folder."""
    new = change.new
    if new is None or new.type is FileType.FOLDER:
        return None
    if not rest:
        return Level.BY_ITSELF, POINTER
    if new.type is FileType.LINK:
        return Level.BY_ITSELF, _LINK
    if rest[-1].endswith(".sample") and len(rest) > 1 and rest[-2] == "hooks":
        return None  # git brings these along and never runs them
    if change.old is not None and _is_named_by_contents(rest) and _has_other_bytes(change):
        return Level.BY_ITSELF, FALSIFIED
    if list(rest[:2]) == ["refs", "replace"] and len(rest) > 2:
        return Level.BY_ITSELF, _REPLACES
    if is_stored(rest) and not _is_steering_store(rest, new.executable):
        return None
    return _steering(rest, new.executable)


def is_stored(rest: Sequence[str]) -> bool:
    """Whether a path in git's own folder is one whose name means nothing."""
    return bool(rest) and rest[0] in _STORED


_HASH = expression(r"[0-9a-f]{38}(?:[0-9a-f]{24})?")
_PACK = expression(r"(?:pack|multi-pack-index|graph)-[0-9a-f]{40}(?:[0-9a-f]{24})?\.\w+")


def _is_named_by_contents(rest: Sequence[str]) -> bool:
    """Whether it is a thing that git names after what is in it, and so never writes twice."""
    *folders, name = rest
    if "objects" not in folders:
        return False
    above = folders[-1]
    is_object = len(above) == 2 and _HASH.fullmatch(name) is not None
    return is_object or _PACK.fullmatch(name) is not None


def _has_other_bytes(change: Change) -> bool:
    return change.kind in (ChangeKind.MODIFIED, ChangeKind.REPLACED)


def _is_steering_store(rest: Sequence[str], executable: bool) -> bool:
    # A submodule may be called "refs": a hook of such a one is told from a branch by its mode.
    return list(rest[-2:]) in (["info", "alternates"], ["info", "http-alternates"]) or (
        executable and "hooks" in rest
    )


def _steering(rest: Sequence[str], executable: bool) -> Finding | None:
    name = rest[-1]
    if _in_store_of_submodule(rest) and not executable:
        return None
    if "hooks" in rest[:-1]:
        return Level.BY_ITSELF, f"git runs it {_WHEN.get(name, 'by itself')}"
    if list(rest[-2:]) == ["info", "grafts"]:
        return Level.BY_ITSELF, _REPLACES
    if list(rest[-2:]) == ["info", "attributes"]:
        return (
            Level.BY_ITSELF,
            "git attributes choose programs that git runs on the files they name",
        )
    if name in ("alternates", "http-alternates"):
        return Level.BY_ITSELF, "it makes git take its objects from elsewhere"
    if name in _OBEYED:
        return Level.BY_ITSELF, _OBEYED[name]
    if rest[0] in ("remotes", "branches"):
        return Level.BY_ITSELF, "git takes the address of a remote from it"
    if name == "git-rebase-todo" or list(rest[-2:]) == ["sequencer", "todo"]:
        return Level.WHEN_USED, "git runs the commands it lists when the rebase goes on"
    if executable:
        return Level.BY_ITSELF, "it is a program in git's own folder, where nobody looks for one"
    return None


def _in_store_of_submodule(rest: Sequence[str]) -> bool:
    # Below modules/NAME/ it is as at the top: there a branch may be called "config".
    if rest[0] != "modules":
        return False
    return any(
        pair in (("refs", "heads"), ("refs", "tags"), ("refs", "remotes"), ("logs", "refs"))
        for pair in pairwise(rest[2:])
    )


class Repositories:
    """Which folders git would take for a repository once the changes are there.

    ``left_out`` are changes that may follow: what they bring counts, what they remove stays.
    """

    def __init__(self, changes: Iterable[Change], left_out: Iterable[Change] = ()):
        changes = tuple(changes)
        self._brought: dict[str, set[str]] = {}
        self._taken = {change.where for change in changes if change.new is None}
        self._answers: dict[str, bool] = {}
        seen: set[str] = set()
        for change in chain(changes, left_out):
            if change.new is None:
                continue
            path = change.where
            above, _, last = path.rpartition("/")
            # What a folder's own path tells need not be told again for all that is in it.
            if above in seen and last.isascii() and last.lower() not in TELLING:
                continue
            seen.add(above)
            for folder, name in _telling(path):
                self._brought.setdefault(folder, set()).add(name)

    def inside(self, change: Change) -> Finding | None:
        """What a change does to a folder that looks like a repository."""
        if change.new is None:
            return None
        for folder, _ in _telling(change.where):
            if self._is_repository(folder):
                rest = parts_of(change.where[len(folder) :])
                if rest in (["head"], ["objects"], ["refs"]):
                    brought = change.old is None
                    return (Level.BY_ITSELF, LOOK_ALIKE) if brought else None
                return inside(rest, change)
        return None

    def hold(self, folder: str) -> bool:
        """Whether a folder lies in one of them, where what is in it may steer git."""
        return any(self._is_repository(above) for above, _ in _telling(folder))

    def _is_repository(self, folder: str) -> bool:
        known = self._answers.get(folder)
        if known is None:
            known = self._answers[folder] = self._has(folder, "HEAD") and (
                self._has(folder, "commondir")
                or (self._has(folder, "objects") and self._has(folder, "refs"))
            )
        return known

    def _has(self, folder: str, name: str) -> bool:
        if name.lower() in self._brought.get(folder, ()):
            return True
        path = f"{folder}/{name}"
        return path not in self._taken and os.path.lexists(path)


TELLING = frozenset(
    {"head", "objects", "refs", "commondir", "config", "config.worktree", "hooks", "info"}
)
"""Names that repositories have."""
_TELLING = expression(rf"/({'|'.join(map(re.escape, sorted(TELLING)))})(?=/|$)", re.IGNORECASE)


def _telling(path: str) -> list[tuple[str, str]]:
    """The folders, innermost first, in which a path has a name that repositories have."""
    found = [(path[: match.start()], match[1].lower()) for match in _TELLING.finditer(path)]
    if found and "/.git/" in path.lower():
        return []  # told by that name already
    return found[::-1]
