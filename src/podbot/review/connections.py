"""What of the network a run reached, and what it was refused, gathered by host.

What was noted came from inside: hosts are names that somebody in there chose.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from podbot.errors import ChangesError
from podbot.frozen import dataclass
from podbot.runs import records, unchanged
from podbot.runs.records import Entry
from podbot.sandbox import connections
from podbot.sandbox.connections import Line

LOOK_SECONDS = 0.3
"""How often one looks whether more was noted."""


@dataclass(frozen=True, slots=True)
class Contact:
    """All connections to one host and port that had the same end.

    ``verdict`` is ``allowed``, ``refused`` or ``failed``; ``reason`` says why for the last two, and
    ``would_allow`` is the word that would have allowed it. ``sent`` and ``received`` are bytes.
    """

    host: str
    port: int
    verdict: str
    count: int
    sent: int = 0
    received: int = 0
    reason: str = ""
    would_allow: str | None = None


def find(word: str, here: str | None = None) -> Entry:
    """The run that is meant, as `records.find` has it, with those that changed nothing.

    ``last`` is the latest here, whatever is left of it.
    """
    others = unchanged.entries()
    if word == records.LAST:
        near = [
            each for each in (*records.entries(), *others) if here is None or each.is_about(here)
        ]
        if not near:
            return records.find(word, here)  # which says what there is instead
        return max(near, key=lambda entry: (entry.started, entry.id))
    try:
        return records.find(word, here)
    except ChangesError:
        found = next((each for each in others if word in (each.id, each.name)), None)
        if found is None:
            raise
        return found


def lines(entry: Entry) -> tuple[tuple[Line, ...], int]:
    """Each connection that was noted, the oldest first, and how many were left out."""
    found = ((), 0) if entry.layer is None else connections.read(entry.layer)
    # Its layer may have gone since it was found, as there was nothing in it.
    return found if any(found) else unchanged.connections(entry.id)


def is_remembered(entry: Entry) -> bool:
    """Whether its connections are kept though nothing else of it is: it changed nothing."""
    return any(each.id == entry.id for each in unchanged.entries())


def followed(entry: Entry) -> Iterator[Line]:
    """Each connection as it is noted, from the first one on, until the run is over."""
    told = 0
    while True:
        live = entry.live  # asked first: what was noted before the end is told
        noted = lines(entry)[0]
        yield from noted[told:]
        told = len(noted)
        if not live:
            return
        time.sleep(LOOK_SECONDS)


def contacts(entry: Entry) -> tuple[Contact, ...]:
    """The connections of a run by host, in the order in which they first came."""
    return gathered(lines(entry)[0])


def gathered(each: Iterable[Line]) -> tuple[Contact, ...]:
    """Connections by host, in the order in which they first came."""
    found: dict[tuple[str, int, str], Contact] = {}
    for line in each:
        key = (_text(line, "host"), _number(line, "port"), _text(line, "verdict"))
        before = found.get(key)
        found[key] = Contact(
            *key,
            1 if before is None else before.count + 1,
            _number(line, "bytes_up") + (0 if before is None else before.sent),
            _number(line, "bytes_down") + (0 if before is None else before.received),
            _text(line, "reason"),
            _text(line, "would_allow") or None,
        )
    return tuple(found.values())


def _text(line: Line, key: str) -> str:
    value = line.get(key)
    return value if isinstance(value, str) else ""


def _number(line: Line, key: str) -> int:
    value = line.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
