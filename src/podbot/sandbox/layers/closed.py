"""Folders that a guest closed to their owner, opened up so that the host can read the changes.

A folder of mode 000 in a kept layer hides its contents from an ordinary user, and whoever looks
must change its mode. The mode the sandbox gave it is written down first, beside the layer's parts,
and counts as the folder's mode; a sandbox that continues in the layer finds it as it left it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

MODES = "modes.json"


def modes(layer: Path) -> dict[str, int]:
    """The true modes of folders that were opened, by their path in the layer (``0.upper/a/b``)."""
    try:
        found = json.loads((layer / MODES).read_bytes())
    except FileNotFoundError:
        return {}
    return {str(path): int(mode) for path, mode in found.items()}


def open_up(layer: Path, path: str, folder: str, mode: int) -> None:
    """Let the owner into a folder: ``path`` in the layer, reachable now as ``folder``."""
    known = modes(layer)
    known.setdefault(path, mode)
    _write(layer, known)
    os.chmod(folder, mode | 0o700)


def shut(layer: Path) -> None:
    """Give every folder its own mode back, the innermost first."""
    known = modes(layer)
    for path in sorted(known, key=len, reverse=True):
        try:
            os.chmod(layer / path, known[path], follow_symlinks=False)
        except (FileNotFoundError, NotImplementedError):
            continue
    if known:
        os.unlink(layer / MODES)


def _write(layer: Path, known: dict[str, int]) -> None:
    draft = layer / f"{MODES}.new"
    draft.write_text(json.dumps(known), encoding="ascii")
    os.rename(draft, layer / MODES)
