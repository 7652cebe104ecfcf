"""`podbot gc`: tidy up after sandboxes that are gone, and show what still waits for review.

It removes only what nobody can miss: layers without a change, half-made ones, containers, their
workspaces and empty control groups of dead processes. An apply or undo that was cut short is put
right. A layer with changes is never removed here, nor anything in use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from podbot.changes.applying import recovery
from podbot.cli import wording
from podbot.cli.talk import tell, warn
from podbot.config import places
from podbot.runs import discarding, records, unchanged
from podbot.sandbox import layers
from podbot.sandbox.overlay import cgroups
from podbot.visible import visible

if TYPE_CHECKING:
    from podbot.launch.containers import Failure
    from podbot.runs.records import Entry

ABOUT = """\
Remove what sandboxes that are gone left behind: layers without a change, half-made
layers, containers, workspaces of tools and control groups of dead processes. An apply
or undo that was interrupted is put right. Layers that hold changes are kept and
listed, and so are workspaces with files to keep, if the tools that used them crashed;
what is in use is left alone. Containers are looked for if there is an engine.

A workspace that tools kept when they ended as they should is neither listed nor
removed: it waits for the next session of that id, in $PODBOT_CACHE or else
~/.cache/podbot/podman, and may be removed by hand."""

EXAMPLES = """\
examples:
  podbot gc --dry-run    only say what would be removed
  podbot gc              remove it
  podbot gc --json       the same as data, for scripts

What is kept holds changes: `podbot changes show ID` tells them, `podbot changes discard ID`
throws them away. It says which are worth discarding: what is wholly applied, and what is
older than a week, with how much it takes.

exit codes: 0 done, 2 something could not be looked at or removed; the rest is done."""

FAILED = 2
OLD = 7 * 86400.0
"""Seconds after which changes that nobody looked at are perhaps not wanted."""
MOST_NAMED = 20

Fate = Literal["removed", "kept", "live", "mended"]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing the sweep found.

    ``targets`` are the folders a layer lies over; ``next`` is what to type about what was kept.
    Of a layer that was kept: what its run is called, its bytes on disk, whether any of it is
    ``applied``, and why it is ``worth`` discarding, if it is.
    """

    fate: Fate
    kind: Literal[
        "layer", "control group", "journal", "container", "container folder", "workspace", "record"
    ]
    path: str
    targets: tuple[str, ...] = ()
    age_seconds: float | None = None
    next: str | None = None
    called: str | None = None
    size: int | None = None
    worth: str | None = None
    applied: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot gc`."""
    parser.description = ABOUT
    parser.epilog = EXAMPLES
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only say")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Sweep and say what was done; 0 unless something failed."""
    dry_run: bool = arguments.dry_run
    # Containers first: what they were the last to use can then go too.
    lines, failed, not_asked = collect_containers(dry_run)
    # And what was cut short before what is kept is looked at: a look heals too, and tells nobody.
    mended, unhealed = (to_mend(), ()) if dry_run else mend_journals()
    lines, failed = [*lines, *collect(dry_run), *mended], (*failed, *unhealed)
    if arguments.json:
        from podbot.cli.stop import failure_data

        problems = [failure_data(each) for each in failed]
        found = [asdict(line) for line in lines]
        data = {"dry_run": dry_run, "found": found, "failed": problems, "not_asked": not_asked}
        print(json.dumps(data, indent=2))
    else:
        tell(table(lines, dry_run))
        if not_asked is not None:
            tell(f"not looked at: {not_asked}; podbot gc looks at them")
    for failure in failed:
        warn(f"podbot gc: {visible(str(failure.error))}")
    return FAILED if failed else 0


def collect_containers(dry_run: bool) -> tuple[list[Line], tuple[Failure, ...], str | None]:
    """Sweep containers, their folders and workspaces; also says what could not be done, and why
    a dry run did not look at containers, if so."""
    from podbot import api

    swept = api.sweep(dry_run)
    lines = [Line("removed", "container", name) for name in swept.containers]
    lines += [Line("removed", "container folder", path) for path in swept.folders]
    lines += [Line("live", "container", name) for name in swept.live]
    lines += [Line("removed", "workspace", path) for path in swept.workspaces]
    lines += [
        Line("kept", "workspace", path, next=f"rm -rf {shlex.quote(path)}")
        for path in swept.kept_workspaces
    ]
    lines += [Line("live", "workspace", path) for path in swept.live_workspaces]
    return lines, swept.failed, swept.not_asked


def collect(dry_run: bool) -> list[Line]:
    """Sweep layers and control groups, and describe each thing that was there."""
    root = layers.place()
    runs = {entry.id: entry for entry in records.entries()}
    known = {layer.id: layer for layer in layers.found()}  # before the sweep removes some
    if not dry_run:
        discarding.finish()
    swept = layers.sweep(dry_run)
    if not dry_run:
        for name in swept.removed:
            if name not in known and records.is_id(name):  # of a load that never came to its end
                records.remove(name)
    fates: dict[Fate, tuple[str, ...]] = {
        "removed": swept.removed,
        "kept": swept.kept,
        "live": swept.live,
    }
    lines = []
    may_look = not (dry_run and places.unfinished())  # else a look would heal
    for fate, names in fates.items():
        for name in names:
            layer = known.get(name)
            targets = layer.targets if layer else ()
            age = max(0.0, time.time() - layer.created) if layer else None
            line = Line(fate, "layer", str(root / name), targets, age)
            lines.append(
                _kept(line, runs[name], may_look) if fate == "kept" and name in runs else line
            )
    lines += [Line("removed", "control group", path) for path in cgroups.sweep(dry_run)]
    lines += [Line("removed", "record", path) for path in unchanged.sweep(dry_run)]
    return lines


def _kept(line: Line, run: Entry, may_look: bool) -> Line:
    """The same with what helps to decide whether to keep it longer; its changes may be looked at
    for that, or not."""
    from podbot.changes.applying.applied import applications

    applied = any(not each.undone for each in applications(run.id))
    return replace(
        line,
        next=f"podbot changes show {shlex.quote(run.called)}",
        called=run.called,
        size=_size(line.path),
        worth=_worth(run, applied, may_look),
        applied=applied,
    )


def _worth(run: Entry, applied: bool, may_look: bool) -> str | None:
    """Why nobody will miss the changes of a run."""
    from podbot.changes.capture import read

    try:
        if may_look and run.layer is not None and not read(run.layer):
            return "all of it is applied" if applied else "nothing in it differs from what is there"
    except Exception:  # whatever is in it: then only its age counts
        return "it cannot be read"
    return "it is old" if time.time() - run.started > OLD else None


def _size(path: str) -> int:
    """Bytes that a folder takes on its disk, as far as it can be looked at."""
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(f"{folder}/{name}").st_blocks * 512
    return found


def to_mend() -> list[Line]:
    """What would be put right. Whether someone is at work on it is not tried out."""
    note = "was cut short, unless a podbot is at work on it just now"
    return [Line("mended", "journal", f"{id}: {note}") for id in places.unfinished()]


def mend_journals() -> tuple[list[Line], tuple[Failure, ...]]:
    """Put right what was cut short; also says what could not be."""
    if not places.state_place().is_dir():
        return [], ()
    healed = recovery.put_right()
    lines = [Line("mended", "journal", message) for message in healed.messages]
    if not healed.failed:
        return lines, ()
    from podbot.launch.containers import Failure

    return lines, tuple(Failure(id, error) for id, error in healed.failed)


def table(lines: list[Line], dry_run: bool) -> str:
    """The outcome as lines for a person; the last one sums it up."""
    words = {
        "removed": "would remove" if dry_run else "removed",
        "kept": "kept",
        "live": "in use",
        "mended": "would mend" if dry_run else "mended",
    }
    width = max(len(word) for word in words.values())
    shown = []
    for line in lines:
        what = f"{line.kind} " if line.kind in ("container", "workspace") else ""
        text = f"{words[line.fate]:<{width}}  {what}{line.path}"
        if line.targets:
            text += f"  over {', '.join(line.targets)}"
        if line.age_seconds is not None:
            text += f", {_age(line.age_seconds)} old"
        shown.append(_on_a_line(text))
    counts = {fate: sum(line.fate == fate for line in lines) for fate in words}
    shown.append(
        f"{words['removed']}: {counts['removed']}, "
        f"kept for their changes: {counts['kept']}, in use: {counts['live']}"
    )
    shown += [_on_a_line(text) for text in _worth_discarding(lines)]
    shown += [_on_a_line(f"next: {text}") for text in _next(lines)]
    return "\n".join(shown)


def _worth_discarding(lines: list[Line]) -> list[str]:
    """The runs that nobody will miss, how much they take, and the command that ends them."""
    found = [line for line in lines if line.worth is not None and line.called is not None]
    if not found:
        return []
    total = wording.size(sum(line.size or 0 for line in found))
    texts = [f"worth discarding: {wording.count(len(found), 'run')}, {total}"]
    for line in found[:MOST_NAMED]:
        texts.append(
            f"  {wording.name(line.called or '')}: {line.worth}, {wording.size(line.size or 0)}"
        )
    if len(found) > MOST_NAMED:
        texts.append(f"  … and {len(found) - MOST_NAMED} more")
    words = " ".join(shlex.quote(line.called or "") for line in found[:MOST_NAMED])
    return [*texts, f"  podbot changes discard {words}"]


def _next(lines: list[Line]) -> list[str]:
    """What to type about the first thing of each kind that was kept."""
    kept = {
        line.kind: line.next
        for line in reversed(lines)
        # Of what is worth discarding more was said above; what is applied in part was decided on.
        if line.next is not None and line.worth is None and not line.applied
    }
    hints = []
    if "layer" in kept:
        id = kept["layer"].removeprefix("podbot changes show ")
        hints.append(
            f"{kept['layer']}; then `podbot changes apply {id}` or `podbot changes discard {id}`"
        )
    if "workspace" in kept:
        hints.append(f"{kept['workspace']}, unless a session with that id is to find its files")
    return hints


def _on_a_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
