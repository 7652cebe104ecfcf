"""`podbot gc`: tidy up after sandboxes that are gone, and show what still waits for review.

It removes only what nobody can miss: layers without a change, half-made ones, containers and empty
control groups of dead processes. An apply or undo that was cut short is put right. A layer with
changes is never removed here, nor anything in use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Literal

from podbot.changes import recovery
from podbot.config import places
from podbot.sandbox.channel import visible
from podbot.sandbox.overlay import cgroups, layers

ABOUT = """\
Remove what sandboxes that are gone left behind: layers without a change, half-made
layers, containers and control groups of dead processes. An apply or undo that was
interrupted is put right. Layers that hold changes are kept and listed; layers and
containers in use are left alone. Containers are looked for if there is an engine."""

EXAMPLES = """\
examples:
  podbot gc --dry-run    only say what would be removed
  podbot gc              remove it
  podbot gc --json       the same as data, for scripts

What is kept holds changes: `podbot changes show ID` tells them, `podbot changes discard ID`
throws them away."""

Fate = Literal["removed", "kept", "live", "mended"]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing the sweep found. ``targets`` are the folders a layer lies over."""

    fate: Fate
    kind: Literal["layer", "control group", "journal", "container", "container folder"]
    path: str
    targets: tuple[str, ...] = ()
    age_seconds: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot gc`."""
    parser.description = ABOUT
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only say")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Sweep and say what was done; 0 unless something failed."""
    dry_run: bool = arguments.dry_run
    # Containers first: what they were the last to use can then go too.
    lines, problem = collect_containers(dry_run)
    lines += collect(dry_run)
    if problem is not None:
        print(f"podbot gc: {visible(problem)}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"dry_run": dry_run, "found": [asdict(line) for line in lines]}, indent=2))
    else:
        print(table(lines, dry_run))
    return 0


def collect_containers(dry_run: bool) -> tuple[list[Line], str | None]:
    """Sweep containers and their folders; also says what kept it from doing so."""
    from podbot import api

    swept = api.sweep(dry_run)
    lines = [Line("removed", "container", name) for name in swept.containers]
    lines += [Line("removed", "container folder", path) for path in swept.folders]
    lines += [Line("live", "container", name) for name in swept.live]
    return lines, swept.problem


def collect(dry_run: bool) -> list[Line]:
    """Sweep layers and control groups, and describe each thing that was there."""
    root = layers.place()
    known = {layer.id: layer for layer in layers.found()}  # before the sweep removes some
    swept = layers.sweep(dry_run)
    fates: dict[Fate, tuple[str, ...]] = {
        "removed": swept.removed,
        "kept": swept.kept,
        "live": swept.live,
    }
    lines = []
    for fate, names in fates.items():
        for name in names:
            layer = known.get(name)
            targets = layer.targets if layer else ()
            age = max(0.0, time.time() - layer.created) if layer else None
            lines.append(Line(fate, "layer", str(root / name), targets, age))
    lines += [Line("removed", "control group", path) for path in cgroups.sweep(dry_run)]
    if not dry_run and places.state_place().is_dir():
        lines += [Line("mended", "journal", told) for told in recovery.recover()]
    return lines


def table(lines: list[Line], dry_run: bool) -> str:
    """The outcome as lines for a person; the last one sums it up."""
    words = {
        "removed": "would remove" if dry_run else "removed",
        "kept": "kept",
        "live": "in use",
        "mended": "mended",
    }
    width = max(len(word) for word in words.values())
    shown = []
    for line in lines:
        what = "" if line.kind != "container" else "container "
        text = f"{words[line.fate]:<{width}}  {what}{line.path}"
        if line.targets:
            text += f"  over {', '.join(line.targets)}"
        if line.age_seconds is not None:
            text += f", {_age(line.age_seconds)} old"
        shown.append(visible(text).replace("\n", "\\n"))
    counts = {fate: sum(line.fate == fate for line in lines) for fate in words}
    shown.append(
        f"{words['removed']}: {counts['removed']}, "
        f"kept for their changes: {counts['kept']}, in use: {counts['live']}"
    )
    return "\n".join(shown)


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
