"""Who a guest is, inside its container and outside, so that both sides can write the workspace.

Inside it is 65534 wherever that can be had. Outside it is the caller when the engine is the
caller's own (rootless). An engine that runs as root gives no such mapping: there the guest is the
ordinary user whose files it works on; for root's files it is nobody, who is shown them as his own
(`_idmapped.py`) or works on a copy. It is never root outside, unless a privileged container was
asked for. This module decides; it touches no file.
"""

from __future__ import annotations

from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox.container.settings import NOBODY

Ids = tuple[int, int]
"""A user and a group."""
NOBODIES: Ids = (NOBODY, NOBODY)
ROOT: Ids = (0, 0)
NO_MAPPING = "host"
"""Said, and not left out: an engine's own default might map ids after all."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What decides about ids: whose engine it is, and whether it is Podman."""

    podman: bool
    rootless: bool
    user: int | None = None
    """Who the engine runs as, where that can be seen."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The guest's ids inside and outside. ``squashed``: neither is that of the files' owner."""

    inside: Ids
    outside: Ids
    userns: str | None
    squashed: bool
    by: str
    """What makes it so, for the guarantees."""

    @property
    def user(self) -> str:
        """As an engine wants it."""
        return f"{self.inside[0]}:{self.inside[1]}"


def choose(engine: EngineKind, caller: Ids, owner: Ids | None) -> Identity:
    """Who the guest is, for a caller and the owner of the folder it works on (none: a new one)."""
    if engine.rootless:
        return _mapped(engine, caller)
    if caller[0] != 0:
        return Identity(
            caller, caller, NO_MAPPING, False,
            f"user {caller[0]}, yourself, inside and outside: an engine of root's maps no ids",
        )  # fmt: skip
    if owner is not None and owner[0] != 0:
        return Identity(
            owner, owner, NO_MAPPING, False,
            f"user {owner[0]}, who owns the folder, inside and outside: an engine of root's maps "
            "no ids",
        )  # fmt: skip
    by = f"user {NOBODY}, nobody, inside and outside"
    return Identity(NOBODIES, NOBODIES, NO_MAPPING, True, by)


def choose_root(engine: EngineKind, caller: Ids) -> Identity:
    """Root inside, for a privileged container."""
    if engine.rootless:
        _check_owner(engine, caller)
        by = f"user namespace: its root is you (user {caller[0]}) outside"
        return Identity(ROOT, caller, None, False, by)
    if caller[0] != 0:
        # What root makes in its workspace could not be removed again.
        raise LaunchError(
            "this engine is root's, and only root is given a privileged container of it",
            kind=Kind.PERMISSION_DENIED,
            remedy="use a rootless engine of your own, or leave out privileged",
        )
    return Identity(ROOT, ROOT, NO_MAPPING, False, "nothing: it is root, inside and outside")


def _check_owner(engine: EngineKind, caller: Ids) -> None:
    if engine.user is not None and engine.user != caller[0]:
        raise LaunchError(
            f"this engine is user {engine.user}'s own, and podbot runs as user {caller[0]}",
            kind=Kind.PERMISSION_DENIED,
            remedy=f"run podbot as user {engine.user}, or name an engine of your own",
        )


def _mapped(engine: EngineKind, caller: Ids) -> Identity:
    _check_owner(engine, caller)
    if not engine.podman:
        # Docker's rootless mode knows one mapping only: its root is you.
        return Identity(
            ROOT, caller, None, False,
            f"user namespace: its root, without any capability, is you (user {caller[0]}) outside",
        )  # fmt: skip
    return Identity(
        NOBODIES, caller, f"keep-id:uid={NOBODY},gid={NOBODY}", False,
        f"user namespace: {NOBODY} inside is you (user {caller[0]}) outside",
    )  # fmt: skip
