"""What containers print and use, and what happens to them, as it happens.

Each is an iterator over a connection of its own; closing it (or letting go of it) ends that. What
containers print is bytes and stays so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from podbot.engine.http import replies
from podbot.engine.http.client import Call, Purpose
from podbot.engine.http.exchange import quoted
from podbot.engine.http.hijacked import STDOUT, Frames
from podbot.engine.http.replies import Fields
from podbot.errors import Kind
from podbot.frozen import dataclass

if TYPE_CHECKING:
    from podbot.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which part of a log: the last ``tail`` lines, what comes after too with ``follow``."""

    follow: bool = False
    tail: int | None = None
    timestamps: bool = False


@dataclass(frozen=True, slots=True)
class Stats:
    """What a container uses. ``cpu_seconds`` is since its start, ``memory`` now, in bytes."""

    cpu_seconds: float
    memory: int
    memory_limit: int
    pids: int
    read_at: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``kind`` is ``container``, ``image``, …; ``action`` what to it."""

    kind: str
    action: str
    id: str
    time: float
    attributes: Mapping[str, str]


def logs(
    engine: Engine, container: str, options: LogOptions | None = None
) -> Iterator[tuple[int, bytes]]:
    """What the main process printed: ``(stream, data)``, where a terminal has only stream 1."""
    options = options or LogOptions()
    tty = engine.containers.inspect(container).tty
    query = {
        "stdout": "1",
        "stderr": "1",
        "follow": "1" if options.follow else "0",
        "timestamps": "1" if options.timestamps else "0",
        "tail": "all" if options.tail is None else str(options.tail),
    }
    purpose = _purpose("read the log of", container)
    path = engine.common(f"/containers/{quoted(container)}/logs")
    frames = Frames()
    # Whoever follows waits for as long as nothing is said.
    call = Call("GET", path, purpose, query, seconds=None if options.follow else 60.0)
    with engine.client.stream(call) as reply:
        for data in reply:
            if tty:
                yield STDOUT, data
            else:
                yield from frames.feed(data)


def stats(engine: Engine, container: str) -> Stats:
    """What a container uses now. Kind ``container_not_found``."""
    path = engine.common(f"/containers/{quoted(container)}/stats")
    query = {"stream": "false", "one-shot": "true"}
    call = Call("GET", path, _purpose("measure", container), query)
    return read_stats(replies.fields(engine.client.call(call).json()))


def follow_stats(engine: Engine, container: str) -> Iterator[Stats]:
    """What a container uses, about once a second, until it ends."""
    path = engine.common(f"/containers/{quoted(container)}/stats")
    call = Call("GET", path, _purpose("measure", container), {"stream": "true"}, seconds=None)
    with engine.client.stream(call) as reply:
        for line in reply.lines():
            yield read_stats(replies.fields(replies.parse(line)))


def events(
    engine: Engine, labels: Mapping[str, str | None] | None = None, since: float | None = None
) -> Iterator[Event]:
    """What happens to things with these labels, from now on or since a time, for ever.

    An engine that keeps no events (Podman with ``events_logger = "none"``) tells none.
    """
    wanted = [
        name if value is None else f"{name}={value}" for name, value in (labels or {}).items()
    ]
    query = {"filters": json.dumps({"label": wanted})} if wanted else {}
    if since is not None:
        query["since"] = f"{since:.6f}"
    path = engine.common("/events")
    call = Call("GET", path, Purpose("follow events"), query, seconds=None)
    with engine.client.stream(call) as reply:
        for line in reply.lines():
            yield read_event(replies.fields(replies.parse(line)))


def read_stats(found: Fields) -> Stats:
    """From a measurement, of either engine."""
    memory = replies.below(found, "memory_stats")
    usage = replies.below(replies.below(found, "cpu_stats"), "cpu_usage")
    return Stats(
        cpu_seconds=replies.whole(usage, "total_usage") / 1e9,
        memory=replies.whole(memory, "usage"),
        memory_limit=replies.whole(memory, "limit"),
        pids=replies.whole(replies.below(found, "pids_stats"), "current"),
        read_at=replies.text(found, "read"),
    )


def read_event(found: Fields) -> Event:
    """From a line of the events."""
    actor = replies.below(found, "Actor")
    nanoseconds = replies.whole(found, "timeNano")
    return Event(
        kind=replies.text(found, "Type"),
        action=replies.visible(replies.text(found, "Action")),
        id=replies.text(actor, "ID") or replies.text(found, "id"),
        time=nanoseconds / 1e9 if nanoseconds else float(replies.whole(found, "time")),
        attributes=replies.text_map(actor, "Attributes"),
    )


def _purpose(doing: str, container: str) -> Purpose:
    return Purpose(
        f"{doing} container {container}",
        subject=container,
        missing=Kind.CONTAINER_NOT_FOUND,
        remedies={Kind.CONTAINER_NOT_FOUND: "list what runs with `podbot ps`"},
    )
