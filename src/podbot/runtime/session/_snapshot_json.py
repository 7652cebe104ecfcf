"""A snapshot as JSON, and back.

Loaded when first used: few sessions are ever written. What is read is hostile input; nothing in it
decides which types are made, and every way it can be wrong is a `SnapshotRestoreError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from podbot.errors import Kind, SnapshotRestoreError, SnapshotSerializationError
from podbot.frozen import frozen_dict
from podbot.json_fields import parsed
from podbot.runtime.given import expect, expect_each
from podbot.runtime.session._codec import CodecError, Json, Types, decode, encode, qualified_name
from podbot.runtime.session._store import State
from podbot.runtime.session.slices import Slice
from podbot.runtime.session.snapshots import Snapshot

FORMAT = "podbot.session"
VERSION = 1

_MEMBERS = {"format", "version", "session_id", "created_at", "tags", "slices"}


def write(snapshot: Snapshot) -> str:
    """As JSON. Raises `SnapshotSerializationError`."""
    try:
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "session_id": snapshot.session_id,
            "created_at": encode(snapshot.created_at),
            "tags": dict(snapshot.tags),
            "slices": _encode_slices(snapshot.slices),
        }
        return json.dumps(whole, allow_nan=False, separators=(",", ":"))
    except (CodecError, ValueError) as error:  # a number of too many digits is a ValueError
        raise SnapshotSerializationError(
            f"the session {snapshot.session_id} cannot be written as JSON: {error}",
            remedy="keep frozen dataclasses of plain values, times, paths and enumerations",
        ) from error


def read(text: str | bytes, types: Iterable[type], max_bytes: int) -> Snapshot:
    """What was written. Raises `SnapshotRestoreError`."""
    expect(text, (str, bytes), "the text of a snapshot", SnapshotRestoreError)
    allowed = expect_each(types, type, "the types a snapshot may name", SnapshotRestoreError)
    expect(max_bytes, int, "max_bytes", SnapshotRestoreError)
    if len(text) > max_bytes:
        raise SnapshotRestoreError(
            f"the snapshot has {len(text):,} bytes, and {max_bytes:,} are allowed",
            kind=Kind.TOO_LARGE,
            remedy="pass a larger max_bytes if you trust where it came from",
        )
    try:
        return _read(parsed(text, unique=True), Types(allowed))
    except (CodecError, ValueError, RecursionError) as error:
        raise SnapshotRestoreError(
            f"this snapshot cannot be restored: {error}",
            remedy="allow the types it needs with types=…, or do not trust where it came from",
        ) from error


def _encode_slices(slices: State) -> list[Json]:
    encoded: dict[str, Json] = {}
    for kind, values in slices.items():
        name = qualified_name(kind)
        if name in encoded:
            raise CodecError(f"two types of slices are called {name}")
        encoded[name] = {"type": name, "values": [encode(value) for value in values]}
    return list(encoded.values())


def _read(whole: Json, types: Types) -> Snapshot:
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise CodecError("it does not say that it is one")
    version = whole.get("version")
    if type(version) is not int or version != VERSION:
        raise CodecError(f"its version is {version!r:.50}, and {VERSION} is known")
    if whole.keys() != _MEMBERS:
        raise CodecError("its members are not those of a snapshot")
    session_id, tags = whole["session_id"], whole["tags"]
    created_at = decode(whole["created_at"], types)
    if not isinstance(session_id, str) or not isinstance(created_at, datetime):
        raise CodecError("it does not say which session it is of, or when")
    if not isinstance(tags, dict) or not all(isinstance(tag, str) for tag in tags.values()):
        raise CodecError("its tags are not text")
    slices = frozen_dict(_read_slices(whole["slices"], types))
    return Snapshot(session_id, created_at, frozen_dict(tags), slices)


def _read_slices(listed: Json, types: Types) -> dict[type, Slice[object]]:
    slices: dict[type, Slice[object]] = {}
    for each in listed if isinstance(listed, list) else [None]:
        if not isinstance(each, dict) or each.keys() != {"type", "values"}:
            raise CodecError("its slices are not a list of slices")
        kind, values = types.find(each["type"]), each["values"]
        if kind in slices or not isinstance(values, list):
            raise CodecError(f"the slice of {kind.__qualname__} is there twice, or is not a list")
        made = [decode(value, types) for value in values]
        if not all(isinstance(value, kind) for value in made):
            raise CodecError(f"the slice of {kind.__qualname__} holds something else")
        slices[kind] = Slice(kind, made)
    return slices
