"""What the host decides of a sandbox, in the shape that travels to the child that becomes it."""

from __future__ import annotations

from typing import TypedDict


class Overlay(TypedDict):
    """One overlay mount: lower folders from the top down; no upper means read-only."""

    at: str
    lower: list[str]
    upper: str | None
    work: str | None


class Bind(TypedDict):
    """A part of the host tree shown at a place, writable or not."""

    source: str
    at: str
    writable: bool


class Plan(TypedDict):
    """What one sandbox is to be, decided by the host. Paths are absolute.

    ``writable`` is where Landlock lets anything change; ``config`` is what the guest must know
    (its `configure`).
    """

    overlays: list[Overlay]
    binds: list[Bind]
    writable: list[str]
    rlimits: dict[str, int]
    pid_max: int | None
    config: dict[str, object]
