"""One changed file by itself, without looking at the other fifty thousand changes of its run.

Only for what is the same whether or not one knows the rest: a file that both sides have at a path,
under one name, below folders that both sides have. Whatever may be a part of something else (a
rename, another name of a file, a folder made anew) is left to `capture`.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Iterator, Sequence

from podbot.changes.applying import gate
from podbot.changes.capture import Part, change_set
from podbot.changes.model import FILE, FOLDER, MODE, MODIFIED, Change, ChangeSet
from podbot.sandbox.layers import Layer

_GLOB = "*?["
_NOT_BELOW = re.compile(r"/|\.{1,2}(/|$)")


def captured(layer: Layer, paths: Sequence[str]) -> ChangeSet | None:
    """What `capture` would say of these paths, if that can be known from them alone."""
    if layer.method != "overlay" or len(layer.targets) != 1 or not paths:
        return None
    gate.heal_first(layer.targets)
    part = Part(layer, 0)
    changes: list[Change] = []
    for text in dict.fromkeys(paths):
        path = posixpath.normpath(text).removeprefix(f"{part.target}/")
        if not text or any(letter in text for letter in _GLOB) or _NOT_BELOW.match(path):
            return None
        try:
            found = _change(part, path)
        except OSError:
            return None  # something is closed, or went away: `capture` knows what to say
        if found is None:
            return None
        if all(found.path != other.path for other in changes):
            changes.append(found)
    changes.sort(key=lambda change: change.path.replace("/", "\0"))
    return change_set(layer, [part], changes, {})


def _change(part: Part, path: str) -> Change | None:
    if part.sides.lower is None or not all(_is_plain(part, above) for above in _above(path)):
        return None
    facts, old = part.sides.upper.facts(path), part.sides.old(path)
    if facts is None or old is None or not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
        return None
    new = part.sides.new(path, facts)
    if new is None or old.type is not FILE or old.links > 1:
        return None
    changes = list(part.changed(path, old, new))
    return changes[0] if len(changes) == 1 and changes[0].kind in (MODIFIED, MODE) else None


def _above(path: str) -> Iterator[str]:
    yield ""
    for at, letter in enumerate(path):
        if letter == "/":
            yield path[:at]


def _is_plain(part: Part, folder: str) -> bool:
    """Whether both sides have a folder, and the layer shows what the host has in it."""
    facts, old = part.sides.upper.facts(folder), part.sides.old(folder)
    return (
        facts is not None
        and stat.S_ISDIR(facts.st_mode)
        and old is not None
        and old.type is FOLDER
        and not part.sides.is_opaque(folder)
    )
