"""The folder a container works on: found, checked, and whether an overlay over it can be had.

An overlay needs Podman on this machine and a folder that shows whole through it; otherwise the
folder is copied, and the guarantees say why. Decides only; `_workspace.py` makes.
"""

from __future__ import annotations

import os
from pathlib import Path

from podbot.config import places
from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import bookkeeping, layers
from podbot.sandbox.container._identity import Ids
from podbot.sandbox.container.settings import Target as GivenTarget
from podbot.sandbox.folders import existing_folder
from podbot.sandbox.layers import copying
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.policy import Policy

REFUSED = ("/proc", "/sys", "/dev", "/run")


@dataclass(frozen=True, slots=True)
class Target:
    """A folder that was checked. ``hidden`` are the paths the policy hides, in it or elsewhere."""

    path: str
    owner: Ids
    hidden: tuple[str, ...]

    @property
    def hidden_inside(self) -> tuple[str, ...]:
        """What must not be seen of it."""
        return tuple(path for path in self.hidden if is_below(path, self.path))


def checked(given: GivenTarget, policy: Policy) -> Target:
    """The folder a caller named, or the error that says why it cannot be one."""
    path = str(existing_folder(given))
    if path == "/" or any(path == place or is_below(path, place) for place in REFUSED):
        raise _refused(f"{path} cannot be a target", "choose a folder of files, such as a project")
    if f"{layers.root()}/".startswith(f"{path}/"):
        raise _refused(
            f"the layers lie below the target {path}",
            f"set {layers.ROOT_VARIABLE} to a folder outside of it",
        )
    hidden = _hidden(policy)
    for secret in hidden:
        if f"{path}/".startswith(f"{secret}/"):
            raise _refused(
                f"target {path} lies in {secret}, which the policy hides",
                f"add {secret!r} to Policy.readable if the work needs it",
            )
    bookkeeping.heal_first((path,))
    facts = os.stat(path)
    return Target(path, (facts.st_uid, facts.st_gid), hidden)


@dataclass(frozen=True, slots=True)
class Overlaying:
    """What an engine can do about overlays: nothing, and why; or which marks it leaves.

    ``elsewhere``: it does not see this machine's files at all.
    """

    refused: str | None
    marks: str = "user"
    elsewhere: bool = False


def why_copied(target: Target, overlaying: Overlaying) -> str | None:
    """Why a folder must be copied to be reviewed; None if an overlay will do."""
    if overlaying.refused is not None:
        return overlaying.refused
    if set(target.path) & set(",:\\\n"):
        return "the engine's overlays take no path with a comma, a colon or a backslash"
    if target.hidden_inside:
        return f"the policy hides {target.hidden_inside[0]}, which is in the target"
    return copying.needed((target.path,))


def refuse_secrets(target: Target) -> None:
    """A bound folder is seen as it is: refuse one that holds what the policy hides."""
    secret = next((path for path in target.hidden_inside if os.path.lexists(path)), None)
    if secret is not None:
        raise _refused(
            f"{target.path} cannot be bound: the policy hides {secret} in it",
            'use workspace="review", or make the secret readable on purpose',
        )


def refuse_writable(path: str, policy: Policy) -> None:
    """A folder that the policy lets change for real is seen whole: refuse one with secrets."""
    # What others' sandboxes changed is no business of this one either.
    for secret in (*_hidden(policy), os.path.realpath(layers.place())):
        if path == secret or is_below(secret, path) or is_below(path, secret):
            raise LaunchError(
                f"the policy makes {path} writable for real, and hides {secret}",
                kind=Kind.INVALID,
                remedy="name a folder without secrets, or make the secret readable on purpose",
            )


def _hidden(policy: Policy) -> tuple[str, ...]:
    """What must not be seen, under its own name and where links lead: a target may hold both."""
    hidden = policy.hidden_paths(_home())
    # Records, journals and what undo needs: nobody's business inside, whatever the policy.
    state = os.path.realpath(places.state_place())
    return tuple(sorted({*hidden, *map(os.path.realpath, hidden), state}))


def _home() -> Path:
    return Path(os.path.realpath(os.path.expanduser("~")))


def _refused(message: str, remedy: str) -> LaunchError:
    return LaunchError(message, kind=Kind.TARGET_REFUSED, remedy=remedy)
