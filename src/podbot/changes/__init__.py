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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.changes.applying.applied import Application
    from podbot.changes.applying.apply import Applied
    from podbot.changes.applying.apply import apply as apply_changes
    from podbot.changes.applying.recovery import recover
    from podbot.changes.applying.undo import Undone
    from podbot.changes.archive.saving import load, save
    from podbot.changes.by_name import applications, discard_changes, undo_changes
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
    from podbot.changes.records import Entry, Record, entries, find
    from podbot.changes.risk.judging import Flag, flags
    from podbot.changes.risk.rules import Level
    from podbot.changes.select import select as select_changes

# Where each public name lives: its module, and its name there if that is another.
_EXPORTS = {
    "Application": "applied",
    "Applied": "apply",
    "Change": "model",
    "ChangeKind": "model",
    "ChangeSet": "model",
    "Choice": "three_way",
    "Conflict": "drift",
    "ConflictKind": "drift",
    "Entry": "records",
    "FileDiff": "diff",
    "FileType": "model",
    "Flag": "risk",
    "Hunk": "hunks",
    "Level": "risk_rules",
    "Merge": "model",
    "Overlap": "three_way",
    "Record": "records",
    "State": "model",
    "Undone": "undo",
    "applications": "by_name",
    "apply_changes": "apply.apply",
    "as_patch": "patch.patch",
    "conflicts": "drift",
    "decide_overlaps": "merging.decided",
    "diff_of": "diff.diff",
    "discard_changes": "by_name",
    "entries": "records",
    "find": "records",
    "flags": "risk",
    "for_people": "diff",
    "load": "archive",
    "not_in_patch": "omissions",
    "read": "capture",
    "recover": "recovery",
    "save": "archive",
    "select_changes": "select.select",
    "undo_changes": "by_name",
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
if not TYPE_CHECKING:  # pragma: no branch - always so at run time

    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module, _, known_as = _EXPORTS[name].partition(".")
        value: object = getattr(import_module(f"{__name__}.{module}"), known_as or name)
        globals()[name] = value  # found at once the next time
        return value
