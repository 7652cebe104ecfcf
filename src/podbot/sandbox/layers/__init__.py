"""Layers on disk: where a sandbox's writes go, kept until someone discards them.

A layer is a folder of its own below the layer root: ``layer.json`` (what it is; locked while its
sandbox lives), ``N.upper`` and ``N.work`` for each target, ``home.*`` for the throw-away home. The
root lies outside of every target (the kernel refuses overlapping layers), is private to the user,
and is covered inside sandboxes.

A layer counts once ``layer.json`` has its text. One that is filled before anything runs over it, by
a copy or from an archive, gets the text at the end; until then the text lies in ``filling``, and if
its maker dies it is swept.
"""

from podbot.sandbox.layers._files import META, TRASH
from podbot.sandbox.layers._layer import (
    MAX_TITLE,
    ORDINARY,
    Layer,
    Traits,
    boot_id,
    check_title,
    complete,
    create,
    found,
    get,
    hold,
    program,
    reopen,
    stand_on,
)
from podbot.sandbox.layers._removing import put_away_before, remove, scrap, throw_away, unmake
from podbot.sandbox.layers._root import ROOT_VARIABLE, described, entries, outside_of, place, root
from podbot.sandbox.layers._sweeping import SweptLayers, sweep, sweep_half_filled

__all__ = [
    "MAX_TITLE", "META", "ORDINARY", "ROOT_VARIABLE", "TRASH", "Layer", "SweptLayers", "Traits",
    "boot_id", "check_title", "complete", "create", "described", "entries", "found", "get",
    "hold", "outside_of", "place", "program", "put_away_before", "remove", "reopen", "root",
    "scrap", "stand_on", "sweep", "sweep_half_filled", "throw_away", "unmake",
]  # fmt: skip
