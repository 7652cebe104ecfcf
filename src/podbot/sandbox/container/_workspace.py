"""The workspace of a container: what is mounted at /workspace, and what becomes of it at the end.

One of four: an overlay over the target, whose upper layer is a `Layer` like any other; a copy of
the target in a layer, with the manifest that tells later what was touched; the target itself; an
empty folder that goes with the sandbox. It outlives the container: a sandbox that is stopped or
lost goes on in the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from podbot.engine.specs import BindMount, Mount, OverlayMount
from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import layers
from podbot.sandbox.container import _target as targets
from podbot.sandbox.container import place as places
from podbot.sandbox.container._identity import Identity, Ids
from podbot.sandbox.container._idmapped import Unmappable, View, swapped
from podbot.sandbox.container._target import Overlaying, Target
from podbot.sandbox.container.place import Place
from podbot.sandbox.container.settings import WORKDIR, Settings
from podbot.sandbox.layers import Layer, Traits, copying
from podbot.sandbox.layers.baseline import Baseline
from podbot.sandbox.limits import Limits


@dataclass(frozen=True, slots=True)
class Contents:
    """What a workspace is: where it lies, how it is mounted, and why it is not an overlay.

    ``mount`` is none if it is in the memory of another machine. ``lock`` is the layer's, and marks
    it as in use. ``view`` must be mounted while a container starts.
    """

    mount: Mount | None
    folder: Path
    layer: Layer | None = None
    lock: int = -1
    copied: str | None = None
    view: View | None = None


class Workspace:
    """A workspace, from before the container until after it."""

    def __init__(self, contents: Contents, discard: bool):
        self.contents = contents
        self._discard = discard

    @property
    def layer(self) -> Layer | None:
        """Where the changes are, if they are kept apart."""
        return self.contents.layer

    def release(self) -> None:
        """Nothing uses it any more: let go. A layer with changes stays. May be called twice."""
        layer, lock = self.contents.layer, self.contents.lock
        if layer is None or lock < 0:
            return
        from podbot.frozen import replace

        self.contents = replace(self.contents, lock=-1)
        with contextlib.suppress(OSError):  # what is left then, `podbot gc` finds
            if self._discard or layer.empty:
                layers.scrap(layer.path)
            elif os.geteuid() == 0:
                # Else the work folder may hold what is not simply ours to remove: it can wait.
                layer.drop_scratch()
        # By hand: a fork of ours may hold a copy of the descriptor.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)

    def fill(
        self, target: Target, identity: Identity, limits: Limits, title: str | None = None
    ) -> None:
        """Make an empty workspace, mounted already, that of a target: copied in, for review."""
        traits = _traits(identity)
        layer, lock = layers.create(
            (target.path,), "copy", False, target.hidden, traits,
            filling=True, title=title,
        )  # fmt: skip
        try:
            # The same folder under another name: what is mounted inside goes along.
            os.rmdir(layer.upper(0))
            os.rename(self.contents.folder, layer.upper(0))
            _copy_in(target, layer, identity, limits)
            layers.complete(layer, lock)
        except BaseException:
            os.close(lock)
            layers.scrap(layer.path)
            raise
        mount = BindMount(str(layer.upper(0)), WORKDIR)
        self.contents = Contents(
            mount, layer.upper(0), layer, lock, "the container was there first"
        )


def prepare(
    settings: Settings, target: Target | None, identity: Identity, overlaying: Overlaying
) -> tuple[Contents, Place]:
    """Make the workspace that was asked for, and the sandbox's own folder."""
    place = Place()
    try:
        if overlaying.elsewhere:
            _check_elsewhere(settings, target)
            return Contents(None, place.workspace), place
        if target is None:
            _own(place.workspace, identity)
            return Contents(BindMount(str(place.workspace), WORKDIR), place.workspace), place
        if settings.workspace == "bind":
            return _bound(settings, target, identity), place
        if settings.layer is not None:
            return _continued(settings.layer, target, identity, overlaying, place), place
        copied = "a copy was asked for"
        if settings.workspace == "review":
            reason = targets.why_copied(target, overlaying)
            if reason is None:
                try:
                    return _overlaid(target, identity, overlaying, place, settings.title), place
                except Unmappable as unmappable:
                    reason = _roots_own(target, unmappable)
            copied = reason
        return _copied(settings, target, identity, copied), place
    except BaseException:
        place.remove()
        raise


def _check_elsewhere(settings: Settings, target: Target | None) -> None:
    """On another machine nothing of this one can be mounted: a target is sent there, once."""
    if settings.workspace == "bind" or settings.layer is not None or settings.policy.writable:
        what = "a folder of this machine cannot be mounted"
    elif target is not None and settings.workspace == "review":
        what = "changes cannot be kept apart for review"
    elif target is not None and any(map(os.path.lexists, target.hidden_inside)):
        what = f"{target.path}, which holds what the policy hides, cannot be sent"
    else:
        return
    raise LaunchError(
        f"the engine is not on this machine: {what}",
        kind=Kind.UNSUPPORTED,
        remedy='use workspace="copy" and download() what you need, or an engine on this machine',
    )


def _bound(settings: Settings, target: Target, identity: Identity) -> Contents:
    targets.refuse_secrets(target)
    if identity.squashed:
        if not settings.hand_over:
            raise LaunchError(
                f"{target.path} is root's: the user inside, {identity.user}, may not write it",
                kind=Kind.TARGET_REFUSED,
                remedy='use workspace="review", or a folder of an ordinary user, '
                "or hand_over=True for a folder that was made for this",
            )
        give_away(target.path, identity.outside)
    return Contents(BindMount(target.path, WORKDIR), Path(target.path))


def _overlaid(
    target: Target,
    identity: Identity,
    overlaying: Overlaying,
    place: Place,
    title: str | None = None,
) -> Contents:
    traits = _overlay_traits(identity, overlaying)
    layer, lock = layers.create(
        (target.path,), "overlay", False, target.hidden, traits, title=title
    )
    try:
        owner, view = target.owner, _view(target, identity, place)
        if view is not None:
            places.sweep()  # what was left mounted by a start that was killed
            view.check_owners()
            view.try_overlay(layer.upper(0))
            owner = swapped(owner)
        if os.geteuid() == 0:
            os.chown(layer.upper(0), *owner)  # it stands for the target inside
    except BaseException:
        os.close(lock)
        layers.scrap(layer.path)
        raise
    return Contents(_overlay_of(layer, view), layer.upper(0), layer, lock, view=view)


def _overlay_of(layer: Layer, view: View | None) -> OverlayMount:
    source = layer.targets[0] if view is None else str(view.place)
    return OverlayMount(source, WORKDIR, str(layer.upper(0)), str(_work(layer)))


def _work(layer: Layer) -> Path:
    return layer.path / "0.work"


def _view(target: Target, identity: Identity, place: Place) -> View | None:
    """What nobody is shown of root's folder; others see theirs as it is."""
    return View(target.path, place.lower) if identity.squashed else None


def _overlay_traits(identity: Identity, overlaying: Overlaying) -> Traits:
    return Traits(overlaying.marks, identity.outside[0] if identity.squashed else None)


def _roots_own(target: Target, why: Unmappable) -> str:
    return f"{target.path} is root's, nobody inside may be root outside, and {why}"


def _copied(settings: Settings, target: Target, identity: Identity, reason: str) -> Contents:
    traits = _traits(identity)
    layer, lock = layers.create(
        (target.path,), "copy", False, target.hidden, traits, filling=True, title=settings.title
    )
    try:
        _copy_in(target, layer, identity, settings.limits)
        layers.complete(layer, lock)
    except BaseException:
        os.close(lock)
        layers.scrap(layer.path)
        raise
    return Contents(BindMount(str(layer.upper(0)), WORKDIR), layer.upper(0), layer, lock, reason)


def _copy_in(target: Target, layer: Layer, identity: Identity, limits: Limits) -> None:
    copying.copy(target.path, layer.upper(0), limits, target.hidden)
    _own(layer.upper(0), identity)
    Baseline.of(layer.upper(0)).write(layer.baseline(0))


def _continued(
    layer: Layer, target: Target, identity: Identity, overlaying: Overlaying, place: Place
) -> Contents:
    """A kept layer; refused if it was made for ids or marks that this engine would not use."""
    if (target.path,) != layer.targets:
        raise LaunchError(
            f"the folders of layer {layer.id} are not what they were: {', '.join(layer.targets)}",
            kind=Kind.TARGET_REFUSED,
            remedy="put them back where they were; a container works on one folder",
        )
    overlay = layer.method != "copy"
    fitting = _overlay_traits(identity, overlaying) if overlay else _traits(identity)
    refusal = targets.why_copied(target, overlaying) if overlay else None
    view = _view(target, identity, place) if overlay else None
    if view is not None and refusal is None:
        try:
            with view.mounted():
                pass
        except Unmappable as unmappable:
            refusal = _roots_own(target, unmappable)
    if layer.traits != fitting or refusal is not None:
        raise LaunchError(
            f"layer {layer.id} cannot be used with this engine: "
            + (refusal or "it was made by another one"),
            kind=Kind.UNSUPPORTED,
            remedy="use the engine or the backend that made it",
        )
    lock = layers.reopen(layer, False, target.hidden)
    if overlay:
        return Contents(_overlay_of(layer, view), layer.upper(0), layer, lock, view=view)
    mount = BindMount(str(layer.upper(0)), WORKDIR)
    return Contents(mount, layer.upper(0), layer, lock, "it continues in a layer that is a copy")


def _traits(identity: Identity) -> Traits:
    """Of a copy: what root gives to one user may be several users' on the host."""
    return Traits(nobody=identity.outside[0]) if os.geteuid() == 0 else layers.ORDINARY


def _own(folder: Path, identity: Identity) -> None:
    """Let the user inside have a folder of podbot's."""
    if os.geteuid() == 0:
        give_away(str(folder), identity.outside)


def give_away(folder: str, ids: Ids) -> None:
    """Make a folder and all in it another user's.

    Links are not followed, and a file with several names stays whose it is: one of them may lie
    elsewhere.
    """
    os.chown(folder, *ids, follow_symlinks=False)
    for _, folders, files, here in os.fwalk(folder):
        for name in (*folders, *files):
            facts = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode) or facts.st_nlink == 1:
                os.chown(name, *ids, dir_fd=here, follow_symlinks=False)
