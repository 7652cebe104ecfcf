"""Changes: what a sandbox did to its targets, and what becomes of it.

    import podbot.sandbox
    from podbot import changes

    with podbot.sandbox.open("overlay", target="~/project") as sandbox:
        sandbox.exec(["make", "format"])

    found = changes.read(sandbox.layer)
    for change in found:
        print(change.kind, change.path)
    changes.apply_changes(found, only=["src"])
    changes.undo_changes(sandbox.layer.id)
    changes.discard_changes(sandbox.layer.id)

Whatever takes a run takes its id, the start of one, its name, or ``last``.

Names here are the public API, imported when first used; modules below are not. A verb that is a
module too (`apply`, `diff`, …) has a second word here.
"""

from podbot.on_use import on_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.changes.applying.applied import Application
    from podbot.changes.applying.apply import Applied
    from podbot.changes.applying.apply import apply as apply_changes
    from podbot.changes.applying.recovery import recover
    from podbot.changes.applying.undo import Undone
    from podbot.changes.archive.saving import save
    from podbot.changes.capture import read
    from podbot.changes.diffs.diff import FileDiff, for_people
    from podbot.changes.diffs.diff import diff as diff_of
    from podbot.changes.diffs.hunks import Hunk
    from podbot.changes.diffs.omissions import not_in_patch
    from podbot.changes.diffs.patch import patch as as_patch
    from podbot.changes.diffs.three_way import Choice, Overlap
    from podbot.changes.drift import Conflict, ConflictKind, conflicts
    from podbot.changes.merging import decided as decide_overlaps
    from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, Merge, State
    from podbot.changes.risk.judging import Flag, flags
    from podbot.changes.risk.rules import Level
    from podbot.changes.select import select as select_changes
    from podbot.runs.by_name import applications, discard_changes, undo_changes
    from podbot.runs.loading import load
    from podbot.runs.records import Entry, Record, entries, find

# Found when first used: whoever needs one part does not pay for the others.
_HOMES = {
    "podbot.changes.applying.apply": "Applied apply_changes=apply",
    "podbot.changes.applying.recovery": "recover",
    "podbot.changes.applying.undo": "Undone",
    "podbot.changes.applying.applied": "Application",
    "podbot.changes.archive.saving": "save",
    "podbot.changes.capture": "read",
    "podbot.changes.diffs.diff": "FileDiff for_people diff_of=diff",
    "podbot.changes.diffs.hunks": "Hunk",
    "podbot.changes.diffs.omissions": "not_in_patch",
    "podbot.changes.diffs.patch": "as_patch=patch",
    "podbot.changes.diffs.three_way": "Choice Overlap",
    "podbot.changes.drift": "Conflict ConflictKind conflicts",
    "podbot.changes.merging": "decide_overlaps=decided",
    "podbot.changes.model": "Change ChangeKind ChangeSet FileType Merge State",
    "podbot.changes.risk.judging": "Flag flags",
    "podbot.changes.risk.rules": "Level",
    "podbot.changes.select": "select_changes=select",
    "podbot.runs.by_name": "applications discard_changes undo_changes",
    "podbot.runs.loading": "load",
    "podbot.runs.records": "Entry Record entries find",
}

__all__ = [
    "Application",
    "Applied",
    "Change",
    "ChangeKind",
    "ChangeSet",
    "Choice",
    "Conflict",
    "ConflictKind",
    "Entry",
    "FileDiff",
    "FileType",
    "Flag",
    "Hunk",
    "Level",
    "Merge",
    "Overlap",
    "Record",
    "State",
    "Undone",
    "applications",
    "apply_changes",
    "as_patch",
    "conflicts",
    "decide_overlaps",
    "diff_of",
    "discard_changes",
    "entries",
    "find",
    "flags",
    "for_people",
    "load",
    "not_in_patch",
    "read",
    "recover",
    "save",
    "select_changes",
    "undo_changes",
]

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)
