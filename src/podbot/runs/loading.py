"""A run made of an archive: its changes in a new layer, and the record that says where from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO

from podbot.changes import given
from podbot.changes.archive import saving
from podbot.changes.archive.saving import ArchiveLimits
from podbot.changes.given import Paths
from podbot.errors import ChangesError
from podbot.runs import discarding, records
from podbot.runs.records import Record
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.network import Network

BACKEND = "archive"


def load(
    file: BinaryIO,
    targets: Paths | None = None,
    limits: ArchiveLimits = ArchiveLimits(),  # noqa: B008 - frozen
    *,
    within: str | None = None,
    command: Sequence[str] = (),
    title: str | None = None,
    note: Callable[[Layer], object] | None = None,
) -> Layer:
    """A new layer with what an archive holds, over its targets or the folders given for them.

    ``within`` is a real folder that the archive's own targets must be or lie in; folders that were
    given may be anywhere. ``command`` or ``title`` say in its record what made it; without either
    it is the name of the file. ``note`` is called when all is there, right before the layer counts.

    Raises `ChangesError`: ``bad_archive`` naming the member, ``target_missing`` and other
    ``target_…`` kinds, ``disk_full``, ``io``, ``state_failed``. Nothing is left behind then.
    """
    if title is None and not command:
        title = f"loaded from {_name(file)}"[: layers.MAX_TITLE]
    layers.check_title(title)
    folders = None if targets is None else given.paths("targets", targets)
    begun: list[Layer] = []

    def noted(layer: Layer) -> None:
        begun.append(layer)
        records.write(_record(layer, tuple(command), title))
        if note is not None:
            note(layer)

    try:
        return saving.load(file, folders, limits, within=within, note=noted)
    except BaseException:
        for layer in begun:
            unload(layer)
        raise


def unload(layer: Layer) -> None:
    """Leave nothing of what was loaded, as something failed that had to follow."""
    with suppress(ChangesError):
        discarding.discard(layer.id, layer if layer.path.exists() else None)


def _name(file: BinaryIO) -> str:
    name = getattr(file, "name", None)
    return os.path.basename(name) if isinstance(name, str) else "an archive"


def _record(layer: Layer, command: tuple[str, ...], title: str | None) -> Record:
    return Record(
        layer.id,
        None,
        command,
        layer.targets,
        backend=BACKEND,
        network=Network.none,
        started=layer.created,
        owner=os.getpid(),
        ended=layer.created,
        title=title,
        program=layers.program(),
    )
