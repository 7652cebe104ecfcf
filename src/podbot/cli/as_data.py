"""What `podbot changes … --json` prints: the same facts as for people, under keys that stay.

Keys are only ever added. A text that is not Unicode (a path may hold any byte) has its odd bytes
replaced by U+FFFD, and a second key ``…_base64`` beside it holds the exact bytes. Times are seconds
since 1970, sizes are bytes, modes are numbers. `docs/changes.md` lists the keys.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from podbot.changes.model import Change, ChangeKind, Merge, State
from podbot.changes.risk.rules import Level

if TYPE_CHECKING:
    from podbot.changes.applying.applied import Application
    from podbot.changes.applying.apply import Applied
    from podbot.changes.applying.undo import Undone
    from podbot.changes.diffs.diff import FileDiff
    from podbot.changes.diffs.hunks import Hunk
    from podbot.cli.actions import Saved
    from podbot.cli.overview import Overview
    from podbot.errors import PodbotError
    from podbot.runs.records import Entry, Past

Data = Mapping[str, object]


def show(data: Data) -> None:
    """Print one object."""
    print(json.dumps(data, indent=2))


def show_long(data: Data, key: str, items: Iterable[Data]) -> None:
    """Print one object whose last key holds a list that is made as it is printed."""
    head = json.dumps(data, indent=2).removesuffix("\n}").removesuffix("{}")
    write = sys.stdout.write
    write((head + "," if data else "{") + f"\n  {json.dumps(key)}: [")
    separator = "\n"
    for item in items:
        write(f"{separator}    {json.dumps(item)}")
        separator = ",\n"
    write("]\n}\n" if separator == "\n" else "\n  ]\n}\n")


def text(key: str, value: str | None) -> dict[str, object]:
    """A text from outside under a key, and its exact bytes if it is not Unicode."""
    if value is None:
        return {key: None}
    raw = _bytes(value)
    shown = raw.decode("utf-8", "replace")
    found: dict[str, object] = {key: shown}
    if shown.encode() != raw:
        from base64 import b64encode

        found[f"{key}_base64"] = b64encode(raw).decode("ascii")
    return found


def texts(key: str, values: Sequence[str]) -> dict[str, object]:
    """The same for a list of texts."""
    pairs = [text(key, value) for value in values]
    found: dict[str, object] = {key: [pair[key] for pair in pairs]}
    exact = f"{key}_base64"
    if any(exact in pair for pair in pairs):
        from base64 import b64encode

        found[exact] = [b64encode(_bytes(value)).decode("ascii") for value in values]
    return found


def _bytes(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character that stands for no byte either
        return value.encode("utf-8", "replace")


def entry(entry: Entry) -> dict[str, object]:
    """A run."""
    record = entry.record
    found: dict[str, object] = {
        "id": entry.id,
        "name": entry.name,
        "status": entry.status,
        "live": entry.live,
        "started": entry.started,
        **texts("targets", entry.targets),
    }
    if record is None:
        return {**found, "command": None}
    return {
        **found,
        **past(record.past),
        "backend": record.backend,
        "network": record.network,
    }


def surroundings(entry: Entry) -> dict[str, object]:
    """What is known of the sandbox of a run, and of the runs it went on from."""
    record = entry.record
    if record is None:
        return {}
    return {
        "guarantees": [
            {"name": each.name, "enforced": each.enforced, "by": each.by}
            for each in record.guarantees
        ],
        **texts("notes", record.notes),
        "earlier": [past(each) for each in record.earlier],
    }


def past(run: Past) -> dict[str, object]:
    """One command and its end."""
    return {
        **texts("command", run.command),
        "started": run.started,
        "ended": run.ended,
        "exit_status": run.exit_status,
        "signal": run.signal,
        "timed_out": run.timed_out,
        **text("error", run.error),
    }


def totals(overview: Overview) -> dict[str, object]:
    """How much was changed, and what needs care."""
    numbers = Counter(each.kind for each in overview.changes)
    return {
        "changes_count": len(overview.changes),
        "counts": {kind.value: numbers[kind] for kind in ChangeKind},
        "size": overview.size,
        "runs_by_itself": len(overview.flagged(Level.BY_ITSELF)),
        "runs_when_used": len(overview.flagged(Level.WHEN_USED)),
        "conflicts": len(overview.conflicts),
        **texts("not_seen", overview.changes.notes),
    }


def place(change: Change) -> dict[str, object]:
    """Which change."""
    return {
        "kind": change.kind.value,
        "type": change.type.value,
        **text("target", change.target),
        **text("path", change.path),
        **text("source", change.source),
    }


def change(change: Change, overview: Overview, diff: FileDiff) -> dict[str, object]:
    """All about one change but its lines."""
    from podbot.cli import merges

    conflict = overview.conflicts.get(change.where)
    return {
        **place(change),
        "size": change.size,
        "old": state(change.old),
        "new": state(change.new),
        "lines_added": diff.added,
        "lines_removed": diff.removed,
        "binary": diff.binary,
        "large": diff.large,
        **text("note", diff.note),
        "flags": [
            {"level": flag.level.value, **text("reason", flag.reason)}
            for flag in overview.flags.get(change.where, ())
        ],
        "conflict": conflict
        and {
            "kind": conflict.kind.value,
            **text("path", conflict.path),
            **text("message", conflict.message),
            "host": state(conflict.host),
        },
        "merge": merges.data(overview.changes.merges.get(change.where)),
    }


def state(side: State | None) -> dict[str, object] | None:
    """One side of a change, or what the host has."""
    if side is None:
        return None
    return {
        "type": side.type.value,
        "mode": side.mode,
        "uid": side.uid,
        "gid": side.gid,
        "size": side.size,
        "modified": side.mtime_ns / 1e9,
        **text("link", side.link),
        "attributes": [name for name, _ in side.xattrs],
    }


def file_diff(diff: FileDiff, merge: Merge | None = None) -> dict[str, object]:
    """The lines of one change, and what it met of other runs."""
    from podbot.cli import merges

    return {
        **place(diff.change),
        "binary": diff.binary,
        "large": diff.large,
        **text("note", diff.note),
        "hunks": [_hunk(hunk) for hunk in diff.hunks],
        "merge": merges.data(merge),
    }


def _hunk(hunk: Hunk) -> dict[str, object]:
    return {
        "old_start": hunk.old_start,
        "old_count": hunk.old_count,
        "new_start": hunk.new_start,
        "new_count": hunk.new_count,
        **texts("lines", [line.decode("utf-8", "surrogateescape") for line in hunk.lines]),
    }


def application(each: Application) -> dict[str, object]:
    """One time that changes of a run were applied."""
    return {
        "id": each.id,
        "when": each.when,
        "paths": each.paths,
        "undone": each.undone,
        **texts("left", each.left),
    }


def applied(outcome: Applied) -> dict[str, object]:
    """What was written to the host, and what not."""
    return {
        "application": outcome.id or None,
        "applied": [place(each) for each in outcome.changed],
        "skipped": [{**place(each), **text("reason", why)} for each, why in outcome.skipped],
    }


def undone(outcome: Undone) -> dict[str, object]:
    """What was put back."""
    return {
        "application": outcome.id,
        **texts("restored", outcome.restored),
        "skipped": [
            {**text("path", where), **text("reason", reason)} for where, reason in outcome.skipped
        ],
        "kept": [{**text("path", where), **text("file", file)} for where, file in outcome.kept],
        "left": outcome.left,
    }


def saved(outcome: Saved) -> dict[str, object]:
    """A file with changes."""
    return {
        **text("file", outcome.file),
        "format": outcome.format,
        "size": outcome.size,
        **texts("not_carried", outcome.not_carried),
        **texts("undecided", outcome.undecided),
    }


def failure(error: PodbotError) -> dict[str, object]:
    """Why something could not be done."""
    return {
        "error": {
            "kind": error.kind.value,
            **text("message", error.message),
            **text("remedy", error.remedy),
        }
    }
