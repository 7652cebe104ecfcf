"""Tidying up after sandboxes whose owners are gone: their containers, folders and old kits.

An owner that was killed takes its containers with it, as their guests see the line close and the
engine removes what has ended. This finds the rest. It never touches what belongs to an owner that
may still live.
"""

from __future__ import annotations

from podbot.engine import Engine
from podbot.engine.owned import owned, owner_state
from podbot.errors import ContainerError
from podbot.frozen import dataclass
from podbot.sandbox.container import _kit, place
from podbot.sandbox.container._running import remove


@dataclass(frozen=True, slots=True)
class SweptContainers:
    """What was found dead and removed: containers by name, and folders.

    ``failed`` are containers that could not be removed, each with the reason; ``problem`` is the
    first of these.
    """

    containers: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    failed: tuple[tuple[str, ContainerError], ...] = ()

    @property
    def problem(self) -> str | None:
        """Why a container could not be removed, if so."""
        return self.failed[0][1].message if self.failed else None


def sweep(engine: Engine | None, dry_run: bool = False) -> SweptContainers:
    """Remove the containers of dead owners from an engine, if one is given, and their folders.

    All that podbot makes is looked at, whatever it was made for. Raises `ContainerError` if the
    engine cannot be asked.
    """
    containers, failed = ([], []) if engine is None else _containers(engine, dry_run)
    folders = place.sweep(dry_run)
    if not dry_run and not place.any_left():
        _kit.drop_old()
    return SweptContainers(tuple(containers), tuple(folders), tuple(failed))


def _containers(
    engine: Engine, dry_run: bool
) -> tuple[list[str], list[tuple[str, ContainerError]]]:
    found: list[str] = []
    failed: list[tuple[str, ContainerError]] = []
    for container in owned(engine):
        if owner_state(engine, container) != "dead":
            continue
        name = container.name or container.id
        try:
            if not dry_run:
                remove(engine, container.id)
            found.append(name)
        except ContainerError as error:
            failed.append((name, error))  # one that is stuck keeps no other
    return found, failed
