"""A change set made by comparing two plain folders, and trees to compare."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.tree import Tree

Node = tuple[str, bytes]
"""``file`` or ``program`` with contents, or ``link`` with where it points."""
Nodes = dict[bytes, Node]


class Folders:
    """The contents of both sides, from two folders."""

    def __init__(self, old: Path, new: Path):
        self.old, self.new = Tree(old), Tree(new)

    def open_old(self, change: Change) -> BinaryIO:
        renamed = change.kind is ChangeKind.RENAMED
        return self.old.open(change.source if renamed and change.source else change.path)

    def open_new(self, change: Change) -> BinaryIO:
        return self.new.open(change.path)


def compare(old: Path, new: Path) -> ChangeSet:
    """What one folder has that the other has not. The old one is the target."""
    contents = Folders(old, new)
    found = []
    paths = _below(contents.old) | _below(contents.new)
    for path in sorted(paths, key=lambda path: path.split("/")):
        before, after = _state(contents.old, path), _state(contents.new, path)
        kind = _kind(contents, path, before, after)
        if kind is not None:
            found.append(Change(kind, str(old), path, before, after))
    return ChangeSet((str(old),), tuple(found), contents, since_ns=0)


def _state(tree: Tree, path: str) -> State | None:
    try:
        return tree.state(path)
    except OSError:
        return None  # on this side a link lies on the way


def _below(tree: Tree, folder: str = "") -> set[str]:
    found = set()
    for name in tree.names(folder):
        path = f"{folder}/{name}" if folder else name
        found.add(path)
        state = tree.state(path)
        if state is not None and state.type is FileType.FOLDER:
            found |= _below(tree, path)
    return found


def _kind(contents: Folders, path: str, old: State | None, new: State | None) -> ChangeKind | None:
    if new is None:
        return ChangeKind.DELETED
    if old is not None and old.type is not new.type:
        return ChangeKind.REPLACED
    if new.type is FileType.LINK and (old is None or old.link != new.link):
        return ChangeKind.LINK
    if new.type not in (FileType.FILE, FileType.FOLDER, FileType.LINK) and old is None:
        return ChangeKind.SPECIAL
    if old is None:
        return ChangeKind.ADDED
    if new.type is FileType.FILE:
        with contents.old.open(path) as before, contents.new.open(path) as after:
            if before.read() != after.read():
                return ChangeKind.MODIFIED
    if (old.mode, old.xattrs) != (new.mode, new.xattrs):
        return ChangeKind.MODE
    return None


def plant(folder: Path, nodes: Nodes) -> Path:
    """Make a tree; folders come with what is in them."""
    folder.mkdir(parents=True)
    for name, (kind, contents) in nodes.items():
        path = os.path.join(os.fsencode(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if kind == "link":
            os.symlink(contents, path)
            continue
        with open(path, "wb") as file:
            file.write(contents)
        os.chmod(path, 0o755 if kind == "program" else 0o644)
        os.utime(path, (1, 1))
    return folder


def harvest(folder: Path) -> Nodes:
    """A tree as git sees it: files, whether they may be run, and links."""
    found: Nodes = {}
    for where, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            path = os.path.join(where, name)
            inner = os.path.relpath(path, os.fsencode(folder))
            if os.path.islink(path):
                found[inner] = ("link", os.readlink(path))
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    kind = "program" if os.stat(path).st_mode & 0o100 else "file"
                    found[inner] = (kind, file.read())
    return found
