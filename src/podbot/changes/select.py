"""Which of the changes are meant: by path, by folder, by glob.

A pattern is a path relative to a target, an absolute host path, or a glob in either: ``*`` stays
within a segment, ``**`` crosses them, case counts. A folder stands for all that is below it. Only
chooses among changes that are there; reads and writes nothing.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Collection, Sequence

from podbot.changes import next_steps
from podbot.changes.given import Paths, paths
from podbot.changes.model import Change, ChangeSet, FileType
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass

ANY_DEPTH = "**"
MOST_COMPARED = 2000
"""Names among which the one is looked for that was perhaps meant: it takes time."""
_MAGIC = re.compile(r"[*?\[]")


def select(changes: ChangeSet, patterns: Paths) -> ChangeSet:
    """The changes that any pattern means, with the new folders they need; all for no pattern.

    Raises `ChangesError` (kind ``nothing_selected``) for a pattern that means none of them.
    """
    patterns = paths("patterns", patterns)
    if not patterns:
        return changes
    names = _names(changes) if any(_MAGIC.search(text) for text in patterns) else set()
    # A name that is there is meant as it stands, brackets and all.
    wanted = [_Pattern.of(text, literal=text.rstrip("/") in names) for text in patterns]
    missed = dict.fromkeys(patterns)
    chosen: set[tuple[str, str]] = set()
    for change in changes:
        for pattern in wanted:
            if any(pattern.means(change.target, path) for path in change.paths):
                chosen.add((change.target, change.path))
                missed.pop(pattern.text, None)
    if missed:
        raise ChangesError(
            "no change matches "
            + ", ".join(f"{text!r}" for text in missed)
            + _near(missed, _names(changes)),
            kind=Kind.NOTHING_SELECTED,
            remedy=next_steps.PATHS,
        )
    _add_new_folders(changes, chosen)
    return changes.narrowed(
        lambda change: (change.target, change.path) in chosen,
        _complete_folders(changes, chosen, wanted),
    )


def _near(missed: Collection[str], names: Collection[str]) -> str:
    """The names that were perhaps meant, as the end of a sentence."""
    known = [name for name in names if not name.startswith("/")]
    if len(known) > MOST_COMPARED:
        return ""
    from podbot.nearest import nearest  # large, and only for an error

    near = dict.fromkeys(filter(None, (nearest(text, known) for text in missed)))
    return f"; did you mean {', '.join(f'{name!r}' for name in near)}?" if near else ""


def places_named(
    places: Collection[tuple[str, str]], patterns: Sequence[str]
) -> set[tuple[str, str]]:
    """Of some places, each a target and a path in it, those that any pattern means.

    Raises `ChangesError` (kind ``nothing_selected``) for a pattern that means none of them.
    """
    names = {name for target, path in places for name in (path, f"{target}/{path}")}
    wanted = [_Pattern.of(text, literal=text.rstrip("/") in names) for text in patterns]
    chosen = {
        pattern.text: {(target, path) for target, path in places if pattern.means(target, path)}
        for pattern in wanted
    }
    missed = [text for text, found in chosen.items() if not found]
    if missed:
        raise ChangesError(
            "nothing that was applied matches "
            + ", ".join(f"{text!r}" for text in missed)
            + _near(missed, names),
            kind=Kind.NOTHING_SELECTED,
            remedy=next_steps.PATHS,
        )
    return set[tuple[str, str]]().union(*chosen.values())


def named(changes: ChangeSet, pattern: str) -> tuple[Change, ...]:
    """The changes that one pattern means, and no folder that only others need; none is none."""
    literal = bool(_MAGIC.search(pattern)) and pattern.rstrip("/") in _names(changes)
    wanted = _Pattern.of(pattern, literal=literal)
    return tuple(
        change
        for change in changes
        if any(wanted.means(change.target, path) for path in change.paths)
    )


def _names(changes: ChangeSet) -> set[str]:
    """Every path of the changes and every folder above, relative and absolute."""
    names: set[str] = set()
    for change in changes:
        for path in change.paths:
            while path and path not in names:
                names |= {path, f"{change.target}/{path}"}
                path = path.rpartition("/")[0]  # noqa: PLW2901 - up to the target
    return names


def is_new_folder(change: Change) -> bool:
    """Whether a folder comes to be where none was: what lies in it needs it."""
    return (
        change.new is not None
        and change.new.type is FileType.FOLDER
        and (change.old is None or change.old.type is not FileType.FOLDER)
    )


def folder_of(where: str) -> str:
    """The absolute path of the folder something lies in."""
    return where.rpartition("/")[0] or "/"


def _add_new_folders(changes: ChangeSet, chosen: set[tuple[str, str]]) -> None:
    new = {(each.target, each.path) for each in changes if is_new_folder(each)}
    gone = {(each.target, each.path) for each in changes if each.new is None}
    for target, path in list(chosen - gone):
        above = path
        while above:
            above = above.rpartition("/")[0]
            if (target, above) in new:
                chosen.add((target, above))


def _complete_folders(
    changes: ChangeSet, chosen: Collection[tuple[str, str]], wanted: Sequence[_Pattern]
) -> dict[str, int]:
    """The times of folders of which nothing was left out: only those are as the sandbox saw."""
    partial: set[str] = set()
    touched: set[str] = set()
    for change in changes:
        taken = (change.target, change.path) in chosen
        for path in change.paths:
            if path:
                folder = folder_of(f"{change.target}/{path}")
                touched.add(folder)
                if not taken:
                    partial.add(folder)

    def is_named(where: str) -> bool:
        for target in changes.targets:
            if where == target or where.startswith(f"{target}/"):
                path = where[len(target) + 1 :]
                return any(pattern.means(target, path) for pattern in wanted)
        return False

    return {
        where: time
        for where, time in changes.folder_times.items()
        if where not in partial and (where in touched or is_named(where))
    }


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str
    plain: str
    parts: tuple[Callable[[str], object] | None, ...]

    @classmethod
    def of(cls, text: str, *, literal: bool = False) -> _Pattern:
        # Nothing is no name: an empty variable in a script must not mean everything.
        plain = posixpath.normpath(text) if text else "\0"
        if plain.startswith("//"):
            plain = plain[1:]  # POSIX lets exactly two slashes mean something else
        parts: list[Callable[[str], object] | None] = []
        if _MAGIC.search(plain) and not literal:
            for part in plain.strip("/").split("/"):
                if part == ANY_DEPTH:
                    parts.append(None)
                else:
                    # Its stars do not backtrack: a hostile name cannot make this slow.
                    parts.append(re.compile(fnmatch.translate(part)).match)
        return cls(text, plain, tuple(parts))

    def means(self, target: str, path: str) -> bool:
        """Whether this is the path, a folder above it, or a glob of either."""
        full = f"{target}/{path}" if path else target
        subject = full if self.plain.startswith("/") else path
        if self.plain in (".", "/"):
            return True
        if subject == self.plain or subject.startswith(f"{self.plain}/"):
            return True
        return bool(self.parts) and self._globs(subject.strip("/"))

    def _globs(self, path: str) -> bool:
        """Whether the parts fit the path or a folder above it, by walking both at once."""
        end = len(self.parts)
        at = self._past_any(0)
        for segment in path.split("/"):
            if end in at:
                break
            after: set[int] = set()
            for place in at:
                part = self.parts[place]
                if part is None:
                    after |= self._past_any(place)
                elif part(segment):
                    after |= self._past_any(place + 1)
            at = after
        return end in at

    def _past_any(self, place: int) -> set[int]:
        places = {place}
        while place < len(self.parts) and self.parts[place] is None:
            place += 1
            places.add(place)
        return places
