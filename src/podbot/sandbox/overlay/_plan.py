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
    """A part of the host tree shown at a place, writable or not; ``covers`` if only to hide that.

    What covers a place need not be there if the place is not.
    """

    source: str
    at: str
    writable: bool
    covers: bool


class Plan(TypedDict):
    """What one sandbox is to be, decided by the host. Paths are absolute.

    ``veils`` are folders in which only what everybody may read is there for root, ``openings`` ones
    whose place an empty folder takes that holds only what is shown in them (see `_veils`).
    ``writable`` is where Landlock lets anything change; ``config`` is what the guest must know
    (its `configure`). ``listen`` is a port for the socket to hand out, if there is to be one.
    """

    overlays: list[Overlay]
    binds: list[Bind]
    veils: list[str]
    openings: list[str]
    writable: list[str]
    rlimits: dict[str, int]
    pid_max: int | None
    listen: int | None
    config: dict[str, object]
