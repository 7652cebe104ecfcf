"""What is known of the latest runs that changed nothing: their records, and their connections.

Nothing of such a run is left to review, so it is listed nowhere and has no claim to its name. Only
who asks what the latest runs connected to is answered from here. It is one file for each run, of a
bounded size, and there are only so many: the oldest go as others come.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from podbot.config.places import state_folder, state_place
from podbot.errors import PodbotError
from podbot.json_fields import parsed
from podbot.runs import records
from podbot.runs.records import Entry, Record

FOLDER = "unchanged"
MOST = 20
"""How many runs are remembered."""
MAX_BYTES = 256 << 10
"""What the connections of one may take; what comes after that is only counted."""
OLD = 7 * 86400.0
"""Seconds after which one is swept."""

Line = Mapping[str, object]


def note(record: Record, connections: Sequence[Line], left_out: int = 0) -> None:
    """Remember a run; where that cannot be done, it is as if it never was."""
    kept, room = [], MAX_BYTES
    for line in connections:
        room -= len(json.dumps(line))
        if room < 0:
            break
        kept.append(line)
    text = records.encoded(record).decode("ascii")
    left_out += len(connections) - len(kept)
    data = {"record": text, "connections": kept, "left_out": left_out}
    with suppress(OSError, PodbotError):
        place = _path(state_folder(FOLDER), record.id)
        draft = place.with_suffix(".new")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump(data, file)
        os.rename(draft, place)
        for name in sorted(os.listdir(place.parent), reverse=True)[MOST:]:
            os.unlink(place.parent / name)


def entries() -> list[Entry]:
    """The runs that are remembered, the newest first."""
    found = []
    for id in _ids():
        record = _read(id)[0]
        if record is not None:
            found.append(Entry(id, record, None, record.name or id))
    return sorted(found, key=lambda entry: (entry.started, entry.id), reverse=True)


def connections(id: str) -> tuple[tuple[Line, ...], int]:
    """The connections of one, the oldest first, and how many were left out."""
    return _read(id)[1:]


def remove(id: str) -> None:
    """Forget one, if it is there."""
    with suppress(OSError):
        os.unlink(_path(state_place() / FOLDER, id))


def sweep(dry_run: bool) -> tuple[str, ...]:
    """Forget those of more than a week ago, and what is damaged; gives their files."""
    folder, swept = state_place() / FOLDER, []
    before = time.time() - OLD
    for id in _ids():
        record = _read(id)[0]
        if record is None or record.started < before:
            swept.append(str(_path(folder, id)))
            if not dry_run:
                remove(id)
    return tuple(swept)


def _path(folder: Path, id: str) -> Path:
    return folder / f"{id}.json"


def _ids() -> list[str]:
    try:
        names = os.listdir(state_place() / FOLDER)
    except OSError:
        return []
    ids = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(id for id in ids if records.is_id(id))


def _read(id: str) -> tuple[Record | None, tuple[Line, ...], int]:
    most = records.MAX_RECORD + 2 * MAX_BYTES
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(_path(state_place() / FOLDER, id), flags), "rb") as file:
            data = parsed(file.read(most))
    except (OSError, ValueError):
        return None, (), 0
    match data:
        case {"record": str(text), "connections": list(lines), "left_out": int(left_out)}:
            record = records.decoded(id, text.encode())
            return record, tuple(line for line in lines if isinstance(line, dict)), left_out
    return None, (), 0
