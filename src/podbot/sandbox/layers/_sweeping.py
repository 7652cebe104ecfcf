"""What dead sandboxes and makers left in the layer folder: removed, unless it holds changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from podbot.frozen import dataclass
from podbot.sandbox.layers._files import FILLING, META, TRASH, locked
from podbot.sandbox.layers._layer import found
from podbot.sandbox.layers._removing import scrap
from podbot.sandbox.layers._root import entries


@dataclass(frozen=True, slots=True)
class SweptLayers:
    """What a sweep did: layers removed, kept because they hold changes, and still in use."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]
    live: tuple[str, ...]


HALF_MADE_AGE = 60.0


def sweep(dry_run: bool = False) -> SweptLayers:
    """Remove what dead sandboxes left that holds no change: never a live one, never a change.

    Half-made layers go once they are a minute old and nobody holds their lock.
    """
    removed, kept, live = [], [], []
    whole = {layer.id: layer for layer in found()}
    for entry in entries():
        layer = whole.get(entry.name)
        if layer is None:
            if not _is_abandoned(entry):
                continue
            if _holds_something(entry):  # damaged, as by a power failure: not ours to throw away
                kept.append(entry.name)
                continue
            removed.append(entry.name)
            if not dry_run:
                scrap(entry)
        elif layer.live:
            live.append(layer.id)
        elif layer.empty:
            removed.append(layer.id)
            if not dry_run:
                scrap(entry)
        else:
            kept.append(layer.id)
            if not dry_run:
                layer.drop_scratch()
    return SweptLayers(tuple(removed), tuple(kept), tuple(live))


def sweep_half_filled() -> tuple[str, ...]:
    """Remove what is left of layers whose maker died while they were being filled."""
    found = tuple(entry for entry in entries() if _was_being_filled(entry))
    for entry in found:
        scrap(entry)
    return tuple(entry.name for entry in found)


def _was_being_filled(entry: Path) -> bool:
    """Whether nobody fills it any more, and it never came to count."""
    try:
        if not (entry / FILLING).exists() or entry.name.startswith(TRASH):
            return False
        with locked(entry / META):
            return os.path.getsize(entry / META) == 0
    except OSError:
        return False


def _is_abandoned(entry: Path) -> bool:
    if entry.name.startswith(TRASH) or _was_being_filled(entry):
        return True
    try:
        if time.time() - os.lstat(entry).st_mtime < HALF_MADE_AGE:
            return False
        with locked(entry / META):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _holds_something(entry: Path) -> bool:
    """Whether something was written to a target in a layer that does not say what it is."""
    if entry.name.startswith(TRASH) or _was_being_filled(entry):
        return False
    for part in entry.iterdir():
        if part.suffix == ".upper" and part.name != "home.upper":
            try:
                if any(part.iterdir()):
                    return True
            except OSError:
                return True
    return False
