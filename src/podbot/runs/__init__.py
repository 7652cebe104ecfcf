"""Runs: what was started in a sandbox that keeps its changes, and how it ended.

    from podbot import changes, runs

    for run in runs.entries():
        print(run.called, run.status, run.record and run.record.command)
    found = runs.find("last")
    changes.apply_changes(changes.read(found.layer))
    runs.undo_changes(found.id)
    runs.discard_changes(found.id)

Whatever takes a run takes its id, the start of one, its name, or ``last``. A `Run` keeps the record
of something that works in a sandbox of one's own; a `LaunchRequest` says what to run, and where.

Names here are the public API, imported when first used; `podbot.changes` has those that are about
changes, too.
"""

from podbot.on_use import on_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.runs.by_name import applications, discard_changes, undo_changes
    from podbot.runs.loading import load
    from podbot.runs.records import Entry, Past, Record, entries, find
    from podbot.runs.request import LaunchRequest
    from podbot.runs.run import Run

_HOMES = {
    "podbot.runs.by_name": "applications discard_changes undo_changes",
    "podbot.runs.loading": "load",
    "podbot.runs.records": "Entry Past Record entries find",
    "podbot.runs.request": "LaunchRequest",
    "podbot.runs.run": "Run",
}

__all__ = [
    "Entry",
    "LaunchRequest",
    "Past",
    "Record",
    "Run",
    "applications",
    "discard_changes",
    "entries",
    "find",
    "load",
    "undo_changes",
]

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)
