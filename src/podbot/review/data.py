"""A review as data: the same facts as for people, under keys that stay. `--json` prints them.

Keys are only ever added. A text that is not Unicode (a path may hold any byte) has its odd bytes
replaced by U+FFFD, and a second key ``…_base64`` beside it holds the exact bytes. Times are seconds
since 1970, sizes are bytes, modes are numbers. `docs/changes.md` lists the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from podbot.changes.model import Change, ChangeSet, Merge, State
from podbot.changes.risk.rules import Level
from podbot.review import connections
from podbot.review.reading import reason

if TYPE_CHECKING:
    from podbot.changes.applying.applied import Application
    from podbot.changes.applying.apply import Applied
    from podbot.changes.applying.undo import Undone
    from podbot.changes.diffs.diff import FileDiff
    from podbot.changes.diffs.hunks import Hunk
    from podbot.changes.diffs.three_way import Overlap
    from podbot.changes.drift import Conflict
    from podbot.errors import PodbotError
    from podbot.review.connections import Contact
    from podbot.review.files import Saved
    from podbot.review.finding import Discarded, Listed
    from podbot.review.summary import Summary
    from podbot.runs.records import Entry, Past

Data = dict[str, object]
"""Texts, numbers, truths, nothing, and lists and objects of these: what JSON holds."""


def text(key: str, value: str | None) -> Data:
    """A text from outside under a key, and its exact bytes if it is not Unicode."""
    if value is None:
        return {key: None}
    raw = _bytes(value)
    shown = raw.decode("utf-8", "replace")
    exact = {} if shown.encode() == raw else {f"{key}_base64": _base64(raw)}
    return {key: shown, **exact}


def texts(key: str, values: Sequence[str]) -> Data:
    """The same for a list of texts."""
    pairs = [text(key, value) for value in values]
    found: Data = {key: [pair[key] for pair in pairs]}
    if any(len(pair) > 1 for pair in pairs):
        found[f"{key}_base64"] = [_base64(_bytes(value)) for value in values]
    return found


def _base64(raw: bytes) -> str:
    from base64 import b64encode

    return b64encode(raw).decode("ascii")


def _bytes(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character that stands for no byte either
        return value.encode("utf-8", "replace")


def entry(entry: Entry) -> Data:
    """A run."""
    record = entry.record
    found: Data = {
        "id": entry.id,
        "name": entry.name,
        "status": entry.status,
        "live": entry.live,
        "started": entry.started,
        **texts("targets", entry.targets),
        **text("title", entry.title),
        **text("program", entry.program),
    }
    if record is None:
        return {**found, "command": None}
    return {
        **found,
        **past(record.past),
        "backend": record.backend,
        "network": record.network,
    }


def surroundings(entry: Entry) -> Data:
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
        "connections": [contact(each) for each in connections.contacts(entry)],
    }


def contact(each: Contact) -> Data:
    """The connections to one host that had the same end."""
    return {
        "host": each.host,
        "port": each.port,
        "verdict": each.verdict,
        "count": each.count,
        "bytes_up": each.sent,
        "bytes_down": each.received,
        "reason": each.reason,
        "would_allow": each.would_allow,
    }


def past(run: Past) -> Data:
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


def totals(found: Summary) -> Data:
    """How much was changed, and what needs care."""
    return {
        "changes_count": len(found.changes),
        "counts": {kind.value: number for kind, number in found.counts.items()},
        "size": found.size,
        "runs_by_itself": len(found.flagged(Level.BY_ITSELF)),
        "runs_when_used": len(found.flagged(Level.WHEN_USED)),
        "conflicts": len(found.conflicts),
        **texts("not_seen", found.changes.notes),
    }


def shown(entry_: Entry, applied: Sequence[Application], found: Summary | None) -> Data:
    """A run without its changes: they come in `changes`, one by one."""
    head = entry(entry_) | surroundings(entry_)
    head["applications"] = [application(each) for each in applied]
    return head if found is None else head | totals(found)


def changes(found: Summary) -> Iterator[Data]:
    """All about each change but its lines, compared as it is asked for."""
    from podbot.changes.diffs.diff import diff

    return (change(each, found, diff(found.changes, each)) for each in found.changes)


def place(change: Change) -> Data:
    """Which change."""
    return {
        "kind": change.kind.value,
        "type": change.type.value,
        **text("target", change.target),
        **text("path", change.path),
        **text("source", change.source),
    }


def change(change: Change, found: Summary, diff: FileDiff) -> Data:
    """All about one change but its lines."""
    conflict = found.conflicts.get(change.where)
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
            for flag in found.flags.get(change.where, ())
        ],
        "conflict": _conflict(conflict),
        "merge": _merge(found.changes.merges.get(change.where)),
    }


def _conflict(conflict: Conflict | None) -> Data | None:
    if conflict is None:
        return None
    return {
        "kind": conflict.kind.value,
        **text("path", conflict.path),
        **text("message", conflict.message),
        "host": state(conflict.host),
    }


def state(side: State | None) -> Data | None:
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


def _merge(merge: Merge | None) -> Data | None:
    if merge is None:
        return None
    return {
        "runs": [*merge.runs],
        "merged": merge.is_clean,
        **text("problem", merge.problem),
        "overlaps": [_overlap(one) for one in merge.overlaps],
    }


def _overlap(one: Overlap) -> Data:
    return {
        "base_line": one.base_at,
        "host_line": one.host_at,
        "run_line": one.run_at,
        **_content("base", one.base),
        **_content("host", one.host),
        **_content("run", one.run),
    }


def _content(key: str, lines: bytes) -> Data:
    return text(key, lines.decode("utf-8", "surrogateescape"))


def files(changes: ChangeSet) -> Iterator[Data]:
    """The lines of each change, compared as it is asked for."""
    from podbot.changes import drift
    from podbot.changes.diffs.diff import diff

    conflicts = {each.change.where: each for each in drift.conflicts(changes)}
    return (
        file_diff(diff(changes, each), changes.merges.get(each.where), conflicts.get(each.where))
        for each in changes
    )


def file_diff(diff: FileDiff, merge: Merge | None = None, conflict: Conflict | None = None) -> Data:
    """The lines of one change, what it met of other runs, and what the host did meanwhile."""
    return {
        **place(diff.change),
        "binary": diff.binary,
        "large": diff.large,
        **text("note", diff.note),
        "hunks": [_hunk(hunk) for hunk in diff.hunks],
        "conflict": _conflict(conflict),
        "merge": _merge(merge),
    }


def _hunk(hunk: Hunk) -> Data:
    return {
        "old_start": hunk.old_start,
        "old_count": hunk.old_count,
        "new_start": hunk.new_start,
        "new_count": hunk.new_count,
        **texts("lines", [line.decode("utf-8", "surrogateescape") for line in hunk.lines]),
    }


def application(each: Application) -> Data:
    """One time that changes of a run were applied."""
    return {
        "id": each.id,
        "when": each.when,
        "paths": each.paths,
        "undone": each.undone,
        **texts("left", each.left),
    }


def applied(outcome: Applied) -> Data:
    """What was written to the host, and what not."""
    return {
        "application": outcome.id or None,
        "applied": [place(each) for each in outcome.changed],
        "skipped": [{**place(each), **text("reason", why)} for each, why in outcome.skipped],
    }


def undone(outcome: Undone) -> Data:
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


def saved(outcome: Saved) -> Data:
    """A file with changes."""
    return {
        **text("file", outcome.file),
        "format": outcome.format,
        "size": outcome.size,
        **texts("not_carried", outcome.not_carried),
        **texts("undecided", outcome.undecided),
        **texts("in_conflict", outcome.in_conflict),
    }


def listed(run: Listed, here: str | None = None) -> Data:
    """A run in a list; ``here``: whether it is about that folder."""
    problem = run.problem
    try:
        about = entry(run.entry)
    except Exception as error:  # what is noted of the layer is not valid
        about, problem = {"id": run.entry.id}, problem or reason(error)
    return {
        **about,
        "changes_count": run.changes_count,
        "size": run.size,
        "applied": run.applied,
        "problem": problem,
        "here": here is None or run.entry.is_about(here),
    }


def discarded(outcome: Discarded, why: str | None = None) -> Data:
    """A run that was to be thrown away; ``why`` not, where that is to be said in other words."""
    why = why or (None if outcome.problem is None else str(outcome.problem))
    return {"id": outcome.entry.id, "discarded": why is None, **text("problem", why)}


def failure(error: PodbotError) -> Data:
    """Why something could not be done."""
    return {
        "error": {
            "kind": error.kind.value,
            **text("message", error.message),
            **text("remedy", error.remedy),
        }
    }
