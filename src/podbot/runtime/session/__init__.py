"""Sessions: typed slices, reducers, attempts and snapshots. Names here are the public API."""

from __future__ import annotations

from podbot.runtime.session.access import SessionMutation, SliceMutation, SliceQuery
from podbot.runtime.session.attempts import Attempt
from podbot.runtime.session.reducers import (
    Reducer,
    ReducerContext,
    append,
    replace_latest,
    upsert_by,
)
from podbot.runtime.session.session import Session
from podbot.runtime.session.slices import Slice
from podbot.runtime.session.snapshots import Snapshot

__all__ = [
    "Attempt",
    "Reducer",
    "ReducerContext",
    "Session",
    "SessionMutation",
    "Slice",
    "SliceMutation",
    "SliceQuery",
    "Snapshot",
    "append",
    "replace_latest",
    "upsert_by",
]
