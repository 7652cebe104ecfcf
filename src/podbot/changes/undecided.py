"""What two runs did to one path that nobody has decided on yet, where changes travel elsewhere.

A patch or an archive is applied where nobody asks any more. So a patch holds only what is settled:
where lines overlap it leaves those that another run applied and has the rest of both, and what is
a plain conflict with another run is left out. Both are told, and how to decide. Reads only.
"""

from __future__ import annotations

from podbot.changes.diffs.text import shown_name
from podbot.changes.diffs.three_way import Choice
from podbot.changes.model import ChangeSet, Merge
from podbot.frozen import replace

MOST_LINES = 5
"""How many overlaps are named by their line."""


def without_undecided(changes: ChangeSet) -> ChangeSet:
    """The changes as they would be applied now: nothing in them takes back what others did."""
    open_ = {where: merge for where, merge in changes.merges.items() if not merge.is_clean}
    if not open_:
        return changes
    from podbot.changes import merging

    there = {change.where for change in changes}
    overlaps = {
        where: [Choice.HOST] * len(merge.overlaps)
        for where, merge in open_.items()
        if merge.problem is None and where in there
    }
    found = merging.decided(changes, overlaps)
    problems = {where for where, merge in open_.items() if merge.problem is not None}
    return replace(found, changes=tuple(one for one in found if one.where not in problems))


def lines(changes: ChangeSet) -> list[str]:
    """What is not settled, a line for each path."""
    found: list[str] = []
    for change in changes:
        merge = changes.merges.get(change.where)
        if merge is not None and not merge.is_clean:
            found.append(f"{shown_name(change.path)}: {reason(merge)}")
    return found


def reason(merge: Merge) -> str:
    """Why two versions of a path are not one."""
    if merge.problem is not None:
        return merge.problem
    who = f"run {merge.runs[-1]}"
    if merge.base is None:
        return f"{who} added it too, and not the same"
    at = ", ".join(str(each.host_at) for each in merge.overlaps[:MOST_LINES])
    at += ", …" if len(merge.overlaps) > MOST_LINES else ""
    return f"{who} changed the same lines (at line {at})"
