"""Snapshots: all slices of a session at one moment.

Taking one and rolling back to it costs nothing. As JSON it is versioned and names every type in
full. Reading it back trusts nothing: only types that the caller allows are made, each field must
fit its annotation, and sizes are bounded. How, is said in `_snapshot_json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from podbot.frozen import dataclass
from podbot.runtime.session._store import State

MAX_BYTES = 64 * 1024 * 1024
"""The longest JSON that is read unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a session held at ``created_at``. `SessionMutation.rollback` puts it back."""

    session_id: str
    created_at: datetime
    tags: Mapping[str, str]
    slices: State

    def to_json(self) -> str:
        """As JSON. Raises `SnapshotSerializationError` for what JSON cannot carry faithfully."""
        from podbot.runtime.session._snapshot_json import write

        return write(self)

    @staticmethod
    def from_json(
        text: str | bytes, *, types: Iterable[type], max_bytes: int = MAX_BYTES
    ) -> Snapshot:
        """Read what `to_json` wrote.

        ``types`` are the only dataclasses and enumerations it may make, besides those that the
        fields of these name: usually ``session.types`` and what its fields of type ``object``
        hold. Raises `SnapshotRestoreError`.
        """
        from podbot.runtime.session._snapshot_json import read

        return read(text, types, max_bytes)
