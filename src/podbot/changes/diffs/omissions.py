"""What no patch can carry: folders without files, owners, attributes, FIFOs, names git refuses, ….

Says so, one line each, to whoever saves a patch. Looks at states, and at the host only to see
which folders the patch would empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from podbot.changes import undecided
from podbot.changes.diffs import _headers, states
from podbot.changes.diffs.text import shown_name
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.tree import Tree

Place = tuple[str, str]
"""A target and a path in it."""

USUAL_FOLDERS = (0o755, 0o775)
LONGEST_NAME = 245
"""Bytes of a name to which git can still add something: ``~`` and a number."""
_TOO_LONG = "has too long a name for git to put it in the place of a folder"
_SEEN = (FileType.FILE, FileType.LINK, FileType.FOLDER)


def not_in_patch(changes: ChangeSet) -> list[str]:
    """What is lost when the changes travel as a patch: one line each, beginning with the path."""
    lost = [f"{line}: the patch leaves what the host has" for line in undecided.lines(changes)]
    changes = undecided.without_undecided(changes)
    come = _folders_above(_carried(changes, old=False))
    gone = _folders_above(_carried(changes, old=True))
    in_the_way = blocked(changes.changes)
    for change in changes:
        place = (change.target, change.path)
        if change in in_the_way:
            what = [in_the_way[change]]
        elif refusal := _refusal(change):
            what = [refusal]
        elif change.type in (FileType.FILE, FileType.LINK):
            what = _lost_of_file(change)
        elif change.type is FileType.FOLDER:
            what = _lost_of_folder(change, place in (gone if change.new is None else come))
        else:
            verb = "is removed" if change.new is None else "is made or changed"
            what = [f"a {states.WORDS[change.type]} {verb}"]
        name = shown_name(_headers.names(changes, change).new) or "."
        lost += [f"{name}: {each}" for each in what]
    for target in changes.targets:
        for folder in _emptied(changes, target):
            lost.append(f"{shown_name(folder)}: is left empty, and git removes it")
    return lost


def blocked(changes: Sequence[Change]) -> dict[Change, str]:
    """What would make the whole patch fail, with the reason: something that git does not see, and
    so does not take away, stands where it or a folder above it would be."""
    return {
        **{change: _TOO_LONG for change in changes if _is_too_long(change)},
        **_in_place_of_unseen(changes),
        **_in_place_of_stuck_folders(changes),
    }


def _is_too_long(change: Change) -> bool:
    """Whether git, which writes beside what is in the way and renames, has no name for that."""
    return (
        change.old is not None
        and change.old.type is FileType.FOLDER
        and _headers.git_mode(change.new) is not None
        and len(os.fsencode(change.path.rpartition("/")[2])) > LONGEST_NAME
    )


def _in_place_of_unseen(changes: Sequence[Change]) -> dict[Change, str]:
    """What comes in the place of a FIFO, socket or device, or below it."""
    unseen = {
        (change.target, change.path): states.WORDS[change.old.type]
        for change in changes
        if change.old is not None and change.old.type not in _SEEN and change.new is not None
    }
    found: dict[Change, str] = {}
    for change in changes if unseen else ():
        if change.new is None:
            continue
        for above in (change.path, *_above(change.path)):
            if word := unseen.get((change.target, above)):
                found[change] = f"cannot take the place of a {word}, which git does not see"
    return found


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _in_place_of_stuck_folders(changes: Sequence[Change]) -> dict[Change, str]:
    """What takes the place of a folder that git cannot empty."""
    replaced = {
        (change.target, change.path): change
        for change in changes
        if change.old is not None
        and change.old.type is FileType.FOLDER
        and _headers.git_mode(change.new) is not None
    }
    if not replaced:
        return {}
    emptied = _folders_above(_carried(changes, old=True))
    stuck = [
        (change.target, change.path)
        for change in changes
        if change.old is not None
        and (
            _refusal(change) is not None
            or change.old.type not in _SEEN
            or (
                change.old.type is FileType.FOLDER
                and (change.target, change.path) not in emptied
                and (change.target, change.path) not in replaced
            )
        )
    ]
    reason = "cannot take the place of a folder that holds what git does not see"
    return {replaced[place]: reason for place in _folders_above(stuck) if place in replaced}


def _carried(changes: Iterable[Change], old: bool) -> Iterator[Place]:
    """Files and links of one side that git writes or removes."""
    for change in changes:
        if _headers.is_carried(change, old):
            yield change.target, change.paths[0] if old else change.path


def _folders_above(places: Iterable[Place]) -> set[Place]:
    found: set[Place] = set()
    for target, path in places:
        folder = path.rpartition("/")[0]
        while folder and (target, folder) not in found:
            found.add((target, folder))
            folder = folder.rpartition("/")[0]
    return found


def _refusal(change: Change) -> str | None:
    return _headers.refusal(change, old=False) or _headers.refusal(change, old=True)


def _lost_of_folder(change: Change, has_files: bool) -> list[str]:
    """Folders are in a patch only by the files in them."""
    new = change.new
    if new is None:
        return [] if has_files else ["an empty folder is removed"]
    lost = states.differences(change.old, new)
    if change.old is not None and change.old.type is FileType.FOLDER:
        return lost
    if not has_files:
        lost.insert(0, "an empty folder is made")
    if new.mode not in USUAL_FOLDERS and f"mode {new.mode:04o}" not in lost:
        lost.append(f"mode {new.mode:04o}")
    return lost


def _lost_of_file(change: Change) -> list[str]:
    """Git writes a file anew: it has the usual mode, no attributes, and belongs to whoever did."""
    old, new = change.old, change.new
    if new is None:
        return []
    lost = []
    if change.kind is ChangeKind.HARD_LINK and change.source is not None:
        lost.append(f"is another name for {shown_name(change.source)} and becomes a copy of it")
    lost += states.differences(old, new)
    kinds = {what.split()[0] for what in lost}
    if "mode" not in kinds and _is_odd(new):
        lost.append(f"mode {new.mode:04o}")
    if "owner" not in kinds and new.uid != os.geteuid():
        lost.append(f"owner {new.uid}:{new.gid}")
    if "attribute" not in kinds:
        lost += [f"attribute {shown_name(name)}" for name, _ in new.xattrs]
    if change.kind is ChangeKind.MODE and old is not None and old.mtime_ns != new.mtime_ns:
        lost.append("time")
    return lost


def _is_odd(state: State) -> bool:
    return state.type is FileType.FILE and state.mode not in states.PLAIN_MODES


def _emptied(changes: ChangeSet, target: str) -> list[str]:
    """Folders that stay, though all that is in them goes: git removes those."""
    gone: dict[str, set[str]] = {}
    for change in changes:
        if change.target != target:
            continue
        for path in change.paths:
            if path != change.path or change.new is None:
                folder, _, name = path.rpartition("/")
                gone.setdefault(folder, set()).add(name)
    come = _folders_above(_carried(changes, old=False))
    removed = {
        change.path
        for change in changes
        if change.target == target and (not change.new or change.new.type is not FileType.FOLDER)
    }
    try:
        tree = Tree(target)
    except OSError:
        return []  # the whole target is gone: the change set has a note about it
    found = []
    with tree:
        for folder, names in sorted(gone.items()):
            if not folder or folder in removed or (target, folder) in come:
                continue
            try:
                if set(tree.names(folder)) <= names:
                    found.append(folder)
            except OSError:
                continue  # no folder on the host any more: a conflict, which others tell of
    return found
