"""Whether a layer is what it was: what is written through an overlay leaves a trace in its upper
folder, which holds little, while the workspace may hold a whole project."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podbot.sandbox.layers import Layer

    Facts = tuple[str, int, int, int, int, int]
    Traces = tuple[Facts, ...]

MOST = 1000
"""Entries of a layer that are looked at; one with more is not compared."""
FRESH_NS = 50_000_000
"""A change this young may be followed by another at what a kernel's clock calls the same time."""


def of(layer: Layer | None) -> Traces | None:
    """What tells that the first target's layer has changed; None when that is not to be had."""
    if layer is None or layer.method != "overlay":
        return None
    found: list[Facts] = []
    upper = str(layer.upper(0))
    folders = [upper]
    try:
        found.append(_facts(upper, os.lstat(upper)))
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if len(found) == MOST:
                        return None
                    found.append(_facts(entry.path, entry.stat(follow_symlinks=False)))
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    except OSError:
        return None  # closed to us, or gone meanwhile
    begun = time.time_ns() - FRESH_NS
    return None if any(facts[-1] > begun for facts in found) else tuple(found)


def _facts(path: str, facts: os.stat_result) -> Facts:
    return path, facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
