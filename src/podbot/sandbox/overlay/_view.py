"""What a sandbox will see: its folders, checked, and what is hidden in and around them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from podbot.config import places
from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import bookkeeping, layers
from podbot.sandbox.folders import Target, existing_folder
from podbot.sandbox.layers import mounts
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.overlay import _hiding, _key_files, _programs, _veils
from podbot.sandbox.overlay.shared import PRIVATE, UNREACHABLE
from podbot.sandbox.policy import Policy

if TYPE_CHECKING:
    from podbot.sandbox.overlay._plan import Overlay


@dataclass(frozen=True, slots=True)
class View:
    """What the sandbox will see: checked targets, the home, and how secrets are hidden.

    ``healed`` says what an interrupted apply or undo had left of the targets.
    """

    targets: tuple[str, ...]
    writable: tuple[str, ...]
    hidden: tuple[str, ...]
    home: str | None
    home_layer: str | None
    hiding: _hiding.Hiding
    healed: tuple[str, ...] = ()
    by_rule: _key_files.Found = _key_files.NOTHING

    @classmethod
    def of(cls, given: tuple[Target, ...], policy: Policy) -> View:
        targets = _checked(given)
        healed = bookkeeping.heal_first(targets)
        home = mounts.home()
        # A target that holds the home, or is it, makes the home reviewed instead of thrown away.
        covered = home is None or any(home == t or is_below(home, t) for t in targets)
        home_layer = None if home is None or covered or mounts.any_below(home) else home
        if home_layer is not None:
            _refuse_layers_below(home_layer, "your home, which sandboxes overlay too", "the home")
        hidden = policy.hidden_paths(Path(home or "/nonexistent"))
        # Records, journals and what undo needs: nobody's business inside, whatever the policy.
        state = os.path.realpath(places.state_place())
        hidden = hidden if state in hidden else tuple(sorted((*hidden, state)))
        for target in targets:
            path = _hiding.above_or_at(target, hidden)
            if path is not None:
                raise LaunchError(
                    f"target {target} lies in {path}, which the policy hides",
                    kind=Kind.TARGET_REFUSED,
                    remedy=f"add {path!r} to Policy.readable if the work needs it",
                )
        writable = tuple(_existing(path) for path in policy.writable)
        by_rule = _key_files.NOTHING
        if home is not None and not covered and policy.hide_by_rule:
            apart = (*hidden, *targets, *policy.readable_paths(Path(home)), *writable)
            by_rule = _key_files.search(home, apart)
            hidden = tuple(sorted({*hidden, *by_rule.paths}))
        overlaid = (*targets, *((home_layer,) if home_layer else ()))
        found = _hiding.arrange(hidden, overlaid, (*PRIVATE, *UNREACHABLE))
        for parent in found.parents:
            _refuse_layers_below(parent, f"{parent}, which is overlaid to hide paths in it", parent)
        for path in writable:
            secret = next((h for h in hidden if f"{h}/".startswith(f"{path}/")), None)
            if secret is not None:
                raise LaunchError(
                    f"the policy makes {path} writable for real, and hides {secret} in it",
                    kind=Kind.INVALID,
                    remedy="name a folder without secrets, or make the secret readable on purpose",
                )
        return cls(targets, writable, hidden, home, home_layer, found, healed, by_rule)

    @property
    def home_inside(self) -> str:
        """Where HOME points: the home if it can be written there, else the private /tmp."""
        if self.home is None:
            return "/tmp"  # noqa: S108 - the sandbox's own
        reviewed = self.home in self.targets or self.is_reviewed(self.home)
        return self.home if self.home_layer or reviewed else "/tmp"  # noqa: S108 - likewise

    def is_reviewed(self, path: str) -> bool:
        """Whether a path lies below a target."""
        return any(is_below(path, target) for target in self.targets)

    def is_covered(self, path: str) -> bool:
        """Whether a path lies below an overlay or a private folder, and not in the host's own."""
        if any(is_below(path, folder) for folder in self.writable):
            return False
        places = (*PRIVATE, "/dev", *self.targets, *((self.home_layer,) if self.home_layer else ()))
        return any(is_below(path, place) for place in (*places, *self.hiding.parents))

    def veiling(self, policy: Policy, bound: list[str], path: str) -> _veils.Veiling:
        """What is veiled around this view, and what is shown all the same.

        ``bound`` are other places with something of the host's; ``path`` is PATH inside.
        """
        if not policy.hide_by_rule or os.getuid() != 0:
            return _veils.NOTHING
        mounted = [*self.targets, *filter(None, [self.home_layer]), *bound]
        named = list(policy.readable_paths(Path(self.home or "/nonexistent")))
        if self.home is not None and self.home not in mounted:
            (mounted if self.home in _veils.FOLDERS else named).append(self.home)
        overlaid = (*PRIVATE, *self.targets, *filter(None, [self.home_layer]))
        named = [p for p in named if not any(p == o or is_below(p, o) for o in overlaid)]
        return _veils.arrange(mounted, named, _programs.folders(policy.python, path))

    def overlay(self, at: str, upper: str, work: str, between: str | None = None) -> Overlay:
        """The overlay over one folder, with what hides beneath it in between, and above that the
        layer it works over."""
        lower = [path for path in (between, self.hiding.templates.get(at), at) if path]
        return {"at": at, "lower": lower, "upper": upper, "work": work}


def _refuse_layers_below(folder: str, place: str, outside: str) -> None:
    """Refuse an overlay over a folder that holds its layers.

    The kernel mounts none when what hides paths lies below the other lower folder; and the layers
    of other sandboxes could be read through it.
    """
    root = str(layers.root())
    if root == folder or is_below(root, folder):
        raise LaunchError(
            f"{layers.described()} lies in {place}",
            kind=Kind.LAYER_FAILED,
            remedy=layers.outside_of(outside),
        )


def _existing(path: str) -> str:
    """A path of the policy that must be there, without links."""
    try:
        return os.path.realpath(os.path.expanduser(path), strict=True)
    except OSError as error:
        raise LaunchError(
            f"the policy makes {path} writable, but: {error.strerror}",
            kind=Kind.INVALID,
            remedy="create it first, or leave it out of Policy.writable",
        ) from None


def _checked(given: tuple[Target, ...]) -> tuple[str, ...]:
    if not given:
        raise LaunchError("no target was given", kind=Kind.INVALID, remedy="name a folder")
    targets = [str(existing_folder(target)) for target in given]
    for index, target in enumerate(targets):
        if target == "/" or any(target == p or is_below(target, p) for p in UNREACHABLE):
            raise LaunchError(
                f"{target} cannot be a target",
                kind=Kind.TARGET_REFUSED,
                remedy="choose a folder of files, such as a project",
            )
        if target in PRIVATE:
            raise LaunchError(
                f"{target} itself is private to each sandbox",
                kind=Kind.TARGET_REFUSED,
                remedy="choose a folder below it",
            )
        for other in targets[:index]:
            if other == target or is_below(target, other) or is_below(other, target):
                raise LaunchError(
                    f"the targets {other} and {target} overlap",
                    kind=Kind.TARGET_REFUSED,
                    remedy="name only the outer one",
                )
        if f"{layers.root()}/".startswith(f"{target}/"):
            raise LaunchError(
                f"the layers lie below the target {target}",
                kind=Kind.TARGET_REFUSED,
                remedy=f"set {layers.ROOT_VARIABLE} to a folder outside of it",
            )
    return tuple(targets)
