"""The manifest of an archive: its first member, from which every other one follows.

A JSON document with one entry a line, so that reading it takes no more memory than its entries do.
All that is read is checked; nothing here touches a file system.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from podbot.changes.archive._fields import NAME, Fields, decoded, is_encodable
from podbot.changes.archive._tar import bad
from podbot.changes.model import ChangeKind, FileType, OldFacts
from podbot.frozen import dataclass

FOLDER = ".podbot"
VERSION = 1
ALONG = "along"
"""The kind of an entry that is no change: a file whose new names are, carried for their sake."""
TIME = "time"
"""The kind of an entry that says only the time of a folder in which entries came or went."""

MAX_LINE = 1 << 18
MAX_TARGETS = 100
MAX_FILE = 1 << 60

_KINDS = {*(kind.value for kind in ChangeKind), ALONG, TIME}


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How much an archive may hold. ``bytes`` counts the holes of files as well."""

    members: int = 250_000
    bytes: int = 16 << 30
    manifest: int = 128 << 20


@dataclass(frozen=True, slots=True)
class NewFacts:
    """What a change leaves at a path. ``opaque``: nothing of the folder that was there shows."""

    type: FileType
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    link: str | None = None
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A change (``kind`` is its kind), or a file that comes along, or the time of a folder."""

    target: int
    path: str
    kind: str
    old: OldFacts | None = None
    new: NewFacts | None = None
    source: str | None = None
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that an archive says of itself. ``numbered``: members lie below their target's number."""

    targets: tuple[str, ...]
    created: float
    numbered: bool
    entries: tuple[Entry, ...]

    def name(self, target: int, path: str) -> str:
        """The name of the member for a path."""
        if self.numbered:
            return f"{target}/{path}" if path else str(target)
        return path or "."


# Writing


def written(manifest: Manifest) -> Iterator[bytes]:
    """The document, line by line."""
    head = {
        "podbot": VERSION,
        "created": manifest.created,
        "targets": list(manifest.targets),
        "numbered": manifest.numbered,
    }
    yield json.dumps(head)[:-1].encode("ascii") + b', "entries": ['
    for number, entry in enumerate(manifest.entries):
        yield (b",\n" if number else b"\n") + json.dumps(_as_data(entry)).encode("ascii")
    yield b"\n]}\n"


def _as_data(entry: Entry) -> dict[str, object]:
    data: dict[str, object] = {"target": entry.target, "path": entry.path, "kind": entry.kind}
    if entry.kind == TIME:
        return data | {"mtime_ns": entry.mtime_ns}
    if entry.source is not None:
        data["source"] = entry.source
    data["old"] = None if entry.old is None else old_as_data(entry.old)
    if entry.new is None:
        return data | {"new": None}
    new: dict[str, object] = {
        name: getattr(entry.new, name) for name in ("mode", "uid", "gid", "size", "mtime_ns")
    }
    new["type"] = entry.new.type.value
    if entry.new.link is not None:
        new["link"] = entry.new.link
    if entry.new.opaque:
        new["opaque"] = True
    return data | {"new": new}


def old_as_data(facts: OldFacts) -> dict[str, object]:
    """What was at a path, as JSON has it."""
    return {
        "type": facts.type.value,
        "mode": facts.mode,
        "size": facts.size,
        "sha256": facts.sha256,
        "link": facts.link,
    }


# Reading


def parsed(lines: Iterable[bytes], limits: ArchiveLimits) -> Manifest:
    """A manifest from its lines, all of it checked. Raises `ChangesError` (``bad_archive``)."""
    source = iter(lines)
    opening = next(source, b"")
    if not opening.endswith(b', "entries": ['):
        raise bad("its manifest does not start as one", NAME)
    head = Fields(decoded(opening + b"]}"))
    if head.number("podbot", 0, 1 << 31) != VERSION:
        raise bad("it was written by another version of podbot", NAME)
    targets = head.texts("targets")
    if len(targets) > MAX_TARGETS:
        raise bad("targets is not valid", NAME)
    if any(not is_encodable(target) for target in targets):
        raise bad("a target of it cannot be a path", NAME)
    entries: list[Entry] = []
    timed: set[tuple[int, str]] = set()
    for line in source:
        if line == b"]}":
            break
        if len(entries) >= limits.members:
            raise bad(f"it has more than {limits.members} entries", NAME)
        entry = _entry(Fields(decoded(line.removesuffix(b","))), len(targets))
        if entry.kind == TIME:
            if (entry.target, entry.path) in timed:
                raise bad("its time is there twice", entry.path)
            timed.add((entry.target, entry.path))
        entries.append(entry)
    else:
        raise bad("its manifest is cut off", NAME)
    if next(source, None) is not None:
        raise bad("something follows its manifest", NAME)
    numbered = head.flag("numbered", None)
    if not targets or (len(targets) > 1 and not numbered):
        raise bad("its manifest does not say what its targets are", NAME)
    return Manifest(targets, head.seconds("created"), numbered, tuple(entries))


def _entry(fields: Fields, targets: int) -> Entry:
    target, path, kind = (
        fields.number("target", 0, targets - 1),
        fields.path("path"),
        fields.text("kind"),
    )
    if kind not in _KINDS:
        raise bad("what happened to it is not known", path)
    if kind == TIME:
        return Entry(target, path, kind, mtime_ns=fields.time("mtime_ns"))
    source = fields.path("source") if fields.has("source") else None
    old = old_from(fields.part("old")) if fields.has("old") else None
    new = _new(fields.part("new")) if fields.has("new") else None
    entry = Entry(target, path, kind, old, new, source)
    _check_sense(entry)
    return entry


def _check_sense(entry: Entry) -> None:
    new, kind, path = entry.new, entry.kind, entry.path
    named = kind in (ChangeKind.RENAMED, ChangeKind.HARD_LINK)
    sensible = (
        (new is None) == (kind == ChangeKind.DELETED)
        and (entry.source is not None) == named
        and (not named or (entry.source not in ("", path)))
        and (new is None or kind not in (ALONG, ChangeKind.HARD_LINK) or new.type is FileType.FILE)
        and (new is None or not new.opaque or kind == ChangeKind.REPLACED)
        and (path != "" or (new is not None and new.type is FileType.FOLDER and not new.opaque))
    )
    if not sensible:
        raise bad("what happened to it is not valid", path)


def _new(fields: Fields) -> NewFacts:
    type = fields.file_type()
    if type is FileType.DEVICE:
        raise bad("it is a device")
    if type is FileType.UNSEEN:
        raise bad("it does not say what it is")
    return NewFacts(
        type,
        fields.number("mode", 0, 0o7777),
        fields.number("uid", 0, 0xFFFFFFFE),
        fields.number("gid", 0, 0xFFFFFFFE),
        fields.number("size", 0, MAX_FILE),
        fields.time("mtime_ns"),
        fields.link() if type is FileType.LINK else None,
        fields.has("opaque") and fields.flag("opaque") and type is FileType.FOLDER,
    )


def old_from(fields: Fields) -> OldFacts:
    """What was at a path, from JSON."""
    digest = fields.text("sha256") if fields.has("sha256") else None
    if digest is not None and (len(digest) != 64 or digest.strip("0123456789abcdef")):
        raise bad("a digest is not valid", NAME)
    return OldFacts(
        fields.file_type(),
        fields.number("mode", 0, 0o7777),
        fields.number("size", 0, MAX_FILE),
        digest,
        fields.link() if fields.has("link") else None,
    )
