"""What is known of each run: its command, times and end, kept apart from its layer.

A record is one small JSON file in the user's state folder, written whole or not at all. Layers
are found without it, so a record that is lost or broken hides nothing; it only says less. This
module never touches a layer.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from podbot.changes import next_steps
from podbot.config.places import state_folder, state_place
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass, replace
from podbot.json_fields import LARGEST, Fields, parsed
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.values import Guarantee

VERSION = 1
FOLDER = "runs"
LAST = "last"

MAX_RECORD = 4 << 20
"""Bytes of a record that are read: more is not one of ours."""
MAX_COMMAND = 64 << 10
"""Characters of a command that are kept."""
MAX_NAME = 64
MAX_EARLIER = 100
"""How many earlier runs in the same layer are remembered."""
SHORTEST = 6
"""Characters of an id's last part that are shown, if they tell it from all others."""
MAX_CANDIDATES = 8
"""How many ids an error names."""

_LIKE_AN_ID = r"[\d-]+|\d{8}-.*|[0-9a-f]{8}"

Status = Literal["running", "ended", "broken off", "kept", "gone"]


@dataclass(frozen=True, slots=True)
class Past:
    """One run: what was started, when, and how it ended.

    ``exit_status`` is what a shell would show; ``signal`` is set for a death by signal; ``error``
    says what podbot itself could not do. ``ended`` is None while it runs, and for good if podbot
    was killed.
    """

    command: tuple[str, ...]
    started: float
    ended: float | None = None
    exit_status: int | None = None
    signal: int | None = None
    timed_out: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The latest run in a layer, with the fields of `Past`; ``earlier`` are those before it.

    ``owner`` is the process that runs it; ``guarantees`` and ``notes`` are its sandbox's. One that
    a program opened by itself has no command: ``title`` is what it calls its work, ``program``
    what it is called.
    """

    id: str
    name: str | None
    command: tuple[str, ...]
    targets: tuple[str, ...]
    backend: str
    network: str
    started: float
    owner: int
    ended: float | None = None
    exit_status: int | None = None
    signal: int | None = None
    timed_out: bool = False
    error: str | None = None
    guarantees: tuple[Guarantee, ...] = ()
    notes: tuple[str, ...] = ()
    earlier: tuple[Past, ...] = ()
    title: str | None = None
    program: str = ""

    @property
    def past(self) -> Past:
        """Only what is kept of a run once another one follows it."""
        return Past(
            self.command, self.started, self.ended, self.exit_status, self.signal,
            self.timed_out, self.error,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A run with what is left of it: its record, its layer, or both.

    ``word`` is what `entries` found to tell it from all others: its name, or enough of its id.
    """

    id: str
    record: Record | None
    layer: Layer | None
    word: str | None = None

    @property
    def called(self) -> str:
        """What to call it for a person: its name, else enough of its id."""
        return self.word or self.id

    def is_about(self, folder: str) -> bool:
        """Whether it works on a folder, or on one that the folder lies in."""
        return any(f"{folder}/".startswith(f"{target.rstrip('/')}/") for target in self.targets)

    @property
    def live(self) -> bool:
        """Whether its sandbox runs now."""
        return self.layer is not None and self.layer.live

    @property
    def status(self) -> Status:
        """``running``; ``ended``; ``broken off`` (podbot was killed, the changes are there);
        ``kept`` (a layer that a program left, of which no end is known); ``gone`` (no layer).
        """
        if self.layer is None:
            return "gone"
        if self.layer.live:
            return "running"
        record = self.record
        if record is None or not (record.command or record.error or record.exit_status is not None):
            return "kept"
        return "broken off" if record.ended is None else "ended"

    @property
    def lost(self) -> bool:
        """Whether it had changes when it ended, and its layer went without being discarded.

        Of a run without changes no end is written, and who discards a run removes its record.
        """
        record = self.record if self.layer is None else None
        return record is not None and record.ended is not None and record.error is None

    @property
    def started(self) -> float:
        """When its latest run began."""
        if self.record is not None:
            return self.record.started
        return 0.0 if self.layer is None else self.layer.created

    @property
    def targets(self) -> tuple[str, ...]:
        """The folders it works on."""
        if self.layer is not None:
            return self.layer.targets
        return () if self.record is None else self.record.targets

    @property
    def name(self) -> str | None:
        """What its user called it."""
        return None if self.record is None else self.record.name

    @property
    def title(self) -> str | None:
        """What it was for, in the words of who opened it."""
        source = self.record or self.layer
        return None if source is None else source.title

    @property
    def program(self) -> str:
        """What the program is called that opened it; empty if that is not known."""
        source = self.record or self.layer
        return "" if source is None else source.program

    @property
    def made_by(self) -> str:
        """What made it, in a few words: its title, its commands, or the program that opened it.

        Of several commands in one layer the first comes first, as most was made by that. Nothing
        in it is made harmless for a terminal.
        """
        if self.title is not None:
            return self.title
        if self.record is not None and self.record.command:
            import shlex

            runs = (*self.record.earlier, self.record.past)
            first, *others = dict.fromkeys(shlex.join(run.command) for run in runs if run.command)
            if len(others) > 1:
                return f"{first}, then {len(others)} more"
            return ", then ".join((first, *others))
        return f"opened by {self.program}" if self.program else ""


# Writing and reading


def write(record: Record, *, durable: bool = True) -> None:
    """Put a record in the place of the one there was; a reader sees the old one or the new one.

    ``durable``: it outlives a power cut too, which costs a wait for the disk.
    """
    path = _path(state_folder(FOLDER), record.id)
    draft = path.with_suffix(".new")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(encoded(record))
            file.flush()
            if durable:
                os.fsync(fd)
        os.rename(draft, path)
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        raise ChangesError(
            f"the record {path} cannot be written: {error.strerror}",
            kind=Kind.STATE_FAILED,
            remedy="free some space there, or set PODBOT_STATE to another folder",
        ) from None


def read(id: str) -> Record | None:
    """The record of a run; None if there is none that makes sense."""
    try:
        fd = os.open(_path(state_place() / FOLDER, id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(MAX_RECORD + 1)
    except OSError:
        return None
    return None if len(data) > MAX_RECORD else decoded(id, data)


def unreadable() -> list[Path]:
    """Records that are there and damaged: what they are of is listed without them, if at all.

    Nothing removes them but their user, or whoever discards the run.
    """
    folder = state_place() / FOLDER
    paths = [folder / f"{id}.json" for id in sorted(_recorded()) if read(id) is None]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def remove(id: str) -> None:
    """Forget a run. Its layer, if there is one, stays and is listed without a record."""
    path = _path(state_place() / FOLDER, id)
    for each in (path, path.with_suffix(".new")):
        try:
            os.unlink(each)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ChangesError(
                f"the record {each} cannot be removed: {error.strerror}",
                kind=Kind.STATE_FAILED,
                remedy="look at the owner and mode of its folder",
            ) from None


def new_id() -> str:
    """An id like those of layers, for a run that has none."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(4).hex()}"


def is_id(word: str) -> bool:
    """Whether a word has the shape of an id: date, time and eight hexadecimal digits."""
    date, time, last = (*word.split("-"), "", "", "")[:3]
    return (
        word == f"{date}-{time}-{last}"
        and (len(date), len(time), len(last)) == (8, 6, 8)
        and set(date + time) <= set("0123456789")
        and set(last) <= set("0123456789abcdef")
    )


def _path(folder: Path, id: str) -> Path:
    if not is_id(id):
        raise _unknown(id)
    return folder / f"{id}.json"


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def encoded(record: Record) -> bytes:
    """A record as text, for `decoded`."""
    data = {
        "version": VERSION,
        "id": record.id,
        "name": record.name,
        "targets": record.targets,
        "backend": record.backend,
        "network": record.network,
        "owner": record.owner,
        "guarantees": [[each.name, each.enforced, each.by] for each in record.guarantees],
        "notes": record.notes,
        "earlier": [_encoded_past(past) for past in record.earlier],
        "title": record.title,
        "program": record.program,
        **_encoded_past(record.past),
    }
    # ASCII: a name that is not UTF-8 is half a character here, which only an escape can carry.
    return json.dumps(data, indent=1).encode("ascii")


def _encoded_past(past: Past) -> dict[str, object]:
    return {
        "command": _shortened(past.command),
        "started": past.started,
        "ended": past.ended,
        "exit_status": past.exit_status,
        "signal": past.signal,
        "timed_out": past.timed_out,
        "error": past.error,
    }


def _shortened(command: tuple[str, ...]) -> list[str]:
    kept, room = [], MAX_COMMAND
    for word in command:
        if room <= 0:
            kept.append("…")
            break
        kept.append(word if len(word) <= room else f"{word[:room]}…")
        room -= len(word) + 1
    return kept


def decoded(id: str, data: bytes) -> Record | None:
    """The record that this text is of the run; None if it makes no sense."""
    try:
        found = Fields(parsed(data))
        if found.number("version") != VERSION or found.text("id") != id:
            return None
        past = _decoded_past(found)
        name, title = found.optional_text("name"), found.optional_text("title")
        earlier = found.items("earlier")
        if (
            (name is not None and not _means_an_id(name) and problem_of(name))
            or (title is not None and len(title) > layers.MAX_TITLE)
            or len(earlier) > MAX_EARLIER
        ):
            return None  # nothing that podbot writes
        return Record(
            id,
            name,
            past.command,
            found.texts("targets"),
            found.text("backend"),
            found.text("network"),
            past.started,
            found.number("owner"),
            past.ended,
            past.exit_status,
            past.signal,
            past.timed_out,
            past.error,
            tuple(map(_guarantee, found.items("guarantees"))),
            found.texts("notes"),
            tuple(_decoded_past(Fields(each)) for each in earlier),
            title,
            found.text("program", ""),
        )
    except ValueError:
        return None


def _decoded_past(found: Fields) -> Past:
    command = found.texts("command")
    if sum(map(len, command)) + len(command) > MAX_COMMAND + len("…") * 4:
        raise found.wrong("command", "one that is shortened")
    return Past(
        command,
        found.seconds("started"),
        found.seconds("ended") if found.has("ended") else None,
        found.optional_number("exit_status", -LARGEST),
        found.optional_number("signal"),
        found.flag("timed_out"),
        found.optional_text("error"),
    )


def _guarantee(found: object) -> Guarantee:
    match found:
        case [str(name), bool(enforced), str(by)]:
            return Guarantee(name, enforced, by)
    raise ValueError("not a guarantee")


# Listing and finding


def entries() -> list[Entry]:
    """Every run with a layer or a record, the newest first; layers of library users too."""
    found = {layer.id: Entry(layer.id, read(layer.id), layer) for layer in layers.found()}
    for id in _recorded():
        if id not in found:
            record = read(id)
            if record is not None:  # else nothing is left that anyone could use
                found[id] = Entry(id, record, None)
    listed = sorted(found.values(), key=lambda entry: (entry.started, entry.id), reverse=True)
    return _with_words(listed)


def _with_words(found: list[Entry]) -> list[Entry]:
    """Each with the shortest word that `find` takes for it alone, as far as one looks."""
    starts = Counter(entry.id.rpartition("-")[2][:SHORTEST] for entry in found)
    dates = {entry.id[:SHORTEST] for entry in found}
    names = Counter(entry.name for entry in found)
    result = []
    for entry in found:
        last = entry.id.rpartition("-")[2]
        start = last[:SHORTEST]
        if entry.name is not None and names[entry.name] == 1:
            word = entry.name
        elif starts[start] == 1 and start not in dates and start not in names:
            word = start
        else:
            word = entry.id
        result.append(replace(entry, word=word))
    return result


def _recorded() -> list[str]:
    folder = state_place() / FOLDER
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return []
        names = os.listdir(folder)
    except OSError:
        return []
    ids = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [id for id in ids if is_id(id)]


def find(word: str, here: str | None = None) -> Entry:
    """The run a person means: an id, the start of one or of its last part, a name, or ``last``.

    ``last`` is the latest run that still has a layer, else the latest; with ``here`` (a folder)
    only of those whose target is that folder or one around it. Raises kinds ``unknown_id`` and
    ``ambiguous_id``.
    """
    found = entries()
    if word == LAST:
        return _last(found, here)
    exact = [entry for entry in found if word in (entry.id, entry.name)]
    candidates = exact or [entry for entry in found if word and _starts(entry.id, word)]
    if not candidates:
        raise _unknown(word, found)
    if len(candidates) > 1:
        raise ChangesError(
            f"{word!r} may mean {_several(candidates)}",
            kind=Kind.AMBIGUOUS_ID,
            remedy="give more of the id, or one of these",
        )
    return candidates[0]


def _last(found: list[Entry], here: str | None) -> Entry:
    near = found if here is None else [entry for entry in found if entry.is_about(here)]
    if not found:
        raise ChangesError("there is no run yet", kind=Kind.UNKNOWN_ID, remedy=next_steps.START)
    if not near:
        latest = found[0]
        raise ChangesError(
            f"no run worked on this folder; the latest elsewhere is {latest.called}"
            f" over {', '.join(latest.targets)}",
            kind=Kind.UNKNOWN_ID,
            remedy=f"name it: {latest.called}; {next_steps.RUNS}",
        )
    return next((entry for entry in near if entry.layer is not None), near[0])


def here() -> str | None:
    """The folder that `last` is about for a person: the current one, if there is one."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return None  # it was removed: then every run counts


def _starts(id: str, word: str) -> bool:
    return id.startswith(word) or id.rpartition("-")[2].startswith(word)


def _several(found: list[Entry]) -> str:
    names = [entry.called for entry in found]
    more = len(names) - MAX_CANDIDATES
    if more > 0:
        names[MAX_CANDIDATES:] = [f"{more} more"]
    return ", ".join(names[:-1]) + f" or {names[-1]}"


def _unknown(word: str, found: Sequence[Entry] = ()) -> ChangesError:
    from podbot.nearest import nearest  # large, and only for an error

    if is_id(word):  # a program has it from somewhere: it was one
        why = ": it changed nothing, which leaves nothing to review, or it was discarded"
    else:
        near = nearest(word, (LAST, *(entry.called for entry in found)))
        why = f"; did you mean {near!r}?" if near else ""
    return ChangesError(
        f"there is no run {word!r}{why}",
        kind=Kind.UNKNOWN_ID,
        remedy=next_steps.LATEST,
    )


def _means_an_id(name: str) -> bool:
    """Whether it might be the start of an id: not given any more, and no harm in what has it."""
    return re.fullmatch(_LIKE_AN_ID, name) is not None


def problem_of(name: str) -> str | None:
    """Why nothing can be called so, whatever other runs are called; None if it can."""
    if not 0 < len(name) <= MAX_NAME:
        return f"it must have 1 to {MAX_NAME} characters"
    if not name.isprintable() or name != name.strip():
        return "it holds control characters, or spaces at an end"
    if name == LAST:
        return "it means the latest run"
    if _means_an_id(name):
        return "it looks like an id"
    if name.startswith("-") or "/" in name:
        return "it looks like an option or a path"
    return None


def check_name(name: str) -> None:
    """Refuse a name that could not be told from an id, or that another run has."""
    reason = problem_of(name)
    if reason is not None:
        raise ChangesError(
            f"{name!r} cannot name a run: {reason}", kind=Kind.INVALID, remedy="choose another"
        )
    other = next((entry for entry in entries() if entry.name == name), None)
    if other is not None:
        import shlex

        word = shlex.quote(name)
        folders = ", ".join(other.targets) or "a folder that is not known"
        raise ChangesError(
            f"another run is called {name!r} already, over {folders}",
            kind=Kind.EXISTS,
            remedy=f"choose another, or see what that one is: podbot changes show {word}\n"
            f"or be done with it: podbot changes discard {word}",
        )
