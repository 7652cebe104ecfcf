"""The overlay backend: a copy-on-write view of chosen folders, really closed, no privileges needed.

This module decides; `setup.py` does. It checks the targets, makes the layer, plans the mounts,
has the zygote fork the guest, and says what is enforced on this host and by what.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podbot.config import places
from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import bookkeeping, interpreter, layers, wire
from podbot.sandbox.channel import launch_failure
from podbot.sandbox.folders import existing_folder
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.layers import Layer, copying, mounts
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.limits import Limits
from podbot.sandbox.overlay import _git_data, _hiding, _report, cgroups, owner
from podbot.sandbox.overlay._running import Below, Running
from podbot.sandbox.overlay.cgroups import Group
from podbot.sandbox.overlay.shared import PRIVATE
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from podbot.sandbox.overlay._plan import Bind, Overlay, Plan

UNREACHABLE = ("/proc", "/sys", "/dev", "/run")
READY_SECONDS = 60.0

Target = str | os.PathLike[str]


class OverlayLauncher(Launcher):
    """Starts an overlay sandbox over one or several folders.

    ``target``: a folder, or several; default the current one. The first is the working folder.
    ``discard``: remove the layer at close; else it stays when it holds changes. ``layer``: a kept
    layer to go on in; its targets are those of the sandbox, and it stays. With both, the sandbox
    sees that layer and works in one of its own over it, which is removed at close: the kept one is
    held meanwhile, and stays exactly as it was. ``confined``: the file verbs stay below the working
    folder, as on other backends; commands see the rest as ever. ``title``: what the work is called
    where its changes are listed.
    """

    name = "overlay"

    def __init__(
        self,
        target: Target | Sequence[Target] | None = None,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        discard: bool = False,
        layer: Layer | None = None,
        confined: bool = False,
        title: str | None = None,
    ):
        layers.check_title(title)
        self.targets: tuple[Target, ...]
        if layer is not None:
            if target is not None:
                raise LaunchError(
                    "a sandbox that goes on in a layer has its targets",
                    kind=Kind.INVALID,
                    remedy="leave out target",
                )
            self.targets = layer.targets
        elif target is None:
            self.targets = (os.getcwd(),)
        elif isinstance(target, str | os.PathLike):
            self.targets = (target,)
        else:
            self.targets = tuple(target)
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        self.discard = discard
        self.layer = layer
        self.confined = confined
        self.title = title

    def launch(self) -> Launched:
        """Start the sandbox; a target overlay cannot serve is copied instead, and said so."""
        machine = os.uname().machine
        if machine not in ("x86_64", "aarch64"):
            raise LaunchError(
                f"the overlay backend does not know the machine {machine}",
                kind=Kind.UNSUPPORTED,
                remedy="use a container backend",
            )
        try:
            view = _View.of(self.targets, self.policy)
            if self.layer is not None:
                go_on = self._go_on_over if self.discard else self._go_on
                return go_on(view, self.layer)
            reason = copying.needed(view.targets)
            if reason is None:
                try:
                    return self._start(view, "overlay", None)
                except LaunchError as error:
                    if error.kind is not Kind.OVERLAY_REFUSED:
                        raise
                    reason = error.message
            return self._start(view, "copy", reason)
        except OSError as error:
            raise _host_failure(error) from error

    def _start(self, view: _View, method: str, reason: str | None) -> Launched:
        copied = method == "copy"
        home = view.home_layer is not None
        layer, lock = layers.create(
            view.targets, method, home, view.hidden, filling=copied, title=self.title
        )
        try:
            if copied:
                from podbot.sandbox.layers.baseline import Baseline

                for index, target in enumerate(view.targets):
                    copying.copy(target, layer.upper(index), self.limits, view.hidden)
                    Baseline.of(layer.upper(index)).write(layer.baseline(index))
                layers.complete(layer, lock)
            return self._run(view, layer, lock, reason)
        except BaseException:
            layers.unmake(layer.path, len(view.targets))
            raise

    def _go_on(self, view: _View, layer: Layer) -> Launched:
        _check_going_on(view, layer)
        lock = layers.reopen(layer, view.home_layer is not None, view.hidden)
        reason = _CONTINUES_A_COPY if layer.method == "copy" else None
        return self._run(view, layer, lock, reason)

    def _go_on_over(self, view: _View, below: Layer) -> Launched:
        """In a layer that is thrown away, over one that stays as it is.

        It never counts as a layer, as without the one below it says nothing: if we die it is swept.
        """
        _check_going_on(view, below)
        held = layers.hold(below)
        try:
            copied = below.method == "copy"
            method, home = "copy" if copied else "overlay", view.home_layer is not None
            hidden = (*view.hidden, *below.hidden)
            layer, lock = layers.create(view.targets, method, home, hidden, filling=True)
            try:
                layers.stand_on(layer, below)
                for index in range(len(view.targets)) if copied else ():
                    copying.copy(str(below.upper(index)), layer.upper(index), self.limits, ())
            except BaseException:
                os.close(lock)
                layers.scrap(layer.path)
                raise
            try:
                reason = _CONTINUES_A_COPY if copied else None
                return self._run(view, layer, lock, reason, Below(below, held))
            except BaseException:
                layers.scrap(layer.path)
                raise
        except BaseException:
            os.close(held)
            raise

    def _run(
        self,
        view: _View,
        layer: Layer,
        lock: int,
        reason: str | None,
        below: Below | None = None,
    ) -> Launched:
        """Start a sandbox over a layer; takes over its lock."""
        try:
            ours, theirs = socket.socketpair()
        except BaseException:
            os.close(lock)
            raise
        group = cgroups.NO_GROUP
        number = None
        try:
            group = self._group()
            plan = self._plan(view, layer, group, below)
            zygote = owner.zygote()
            order = owner.Order(
                plan, self.policy.network, [str(folder) for folder in group.folders],
                str(layer.path.parent),
            )  # fmt: skip
            number = zygote.start(order, theirs, lock)
            theirs.close()
            # Said while the child works; then wait for it.
            guarantees = _report.guarantees(self.policy, self.limits, group, reason)
            notes = _report.notes(view.targets, view.hiding.uncovered, view.home_layer, reason)
            notes = (*view.healed, *notes)
            await_ready(ours)
        except BaseException:
            ours.close()
            theirs.close()
            os.close(lock)
            if number is not None:
                zygote.end(number)
            group.remove()
            raise
        os.close(lock)  # the zygote's copy keeps the layer locked while the sandbox lives
        kept = bookkeeping.Kept(
            layer, self.name, self.policy.network, guarantees, notes, self.title, time.time()
        )
        goes_on = self.layer is not None and below is None
        running = Running(kept, group, zygote, number, self.discard, below, goes_on)
        if self.limits.disk is not None:
            running.watch(self.limits.disk)
        return Launched(
            workdir=view.targets[0],
            guarantees=guarantees,
            end=running.end,
            connection=ours,
            died=running.reason,
            layer=layer,
            notes=notes,
        )

    def _group(self) -> Group:
        limits = self.limits
        pids = None if limits.pids is None or _report.pids_by(limits.pids) else limits.pids
        return cgroups.create(limits.cpu, limits.memory, pids)

    def _plan(self, view: _View, layer: Layer, group: Group, below: Below | None) -> Plan:
        overlays: list[Overlay] = []
        binds: list[Bind] = []
        for index, target in enumerate(view.targets):
            upper = str(layer.upper(index))
            if layer.method == "copy":
                binds.append({"source": upper, "at": target, "writable": True})
            else:
                work = str(layer.path / f"{index}.work")
                between = None if below is None else str(below.layer.upper(index))
                overlays.append(view.overlay(target, upper, work, between))
        if view.home_layer is not None:
            upper, work = str(layer.path / "home.upper"), str(layer.path / "home.work")
            overlays.append(view.overlay(view.home_layer, upper, work))
        for parent, template in view.hiding.parents.items():
            overlays.append(
                {"at": parent, "lower": [template, parent], "upper": None, "work": None}
            )
        for path in view.writable:
            binds.append({"source": path, "at": path, "writable": True})
        covers = dict(view.hiding.covers)
        for path in mounts.sockets():
            # Sockets are not reachable through an overlay, nor below a private folder.
            if not view.is_covered(path) and os.path.lexists(path):
                covers[path] = _hiding.empty_file()
        if not view.is_covered(str(layer.path.parent)):
            covers[str(layer.path.parent)] = _hiding.empty_folder()
        for path, cover in covers.items():
            binds.append({"source": cover, "at": path, "writable": False})
        for path in _own_programs(self.policy):
            # podbot itself may be installed below /tmp: its interpreter must be found inside.
            if any(is_below(path, folder) for folder in PRIVATE) and not view.is_reviewed(path):
                binds.append({"source": path, "at": path, "writable": False})
        for target in view.targets:
            place = _git_data.outside(target, view.targets)
            repository = _git_data.repository(place, target) if place else None
            if repository is not None:
                binds.append({"source": repository, "at": repository, "writable": False})
        private = [path for path in PRIVATE if os.path.isdir(path)]
        writable = [*private, "/dev", *view.targets]
        writable += [view.home_layer] if view.home_layer else []
        writable += [bind["at"] for bind in binds if bind["writable"]]
        pids = self.limits.pids
        return {
            "overlays": overlays,
            "binds": binds,
            "writable": list(dict.fromkeys(writable)),
            "rlimits": _report.rlimits(self.limits, group),
            "pid_max": pids if pids and _report.pids_by(pids) == "pid_max" else None,
            "config": {
                "workdir": view.targets[0],
                "root": view.targets[0] if self.confined else "/",
                "env": self.policy.environment_inside(Path(view.home_inside)),
                "python": self.policy.python,
                "rg": interpreter.ripgrep(),
            },
        }


_CONTINUES_A_COPY = "it continues in a layer that is a copy"


def _check_going_on(view: _View, layer: Layer) -> None:
    if view.targets != layer.targets:
        raise LaunchError(
            f"the folders of layer {layer.id} are not what they were: now {view.targets}",
            kind=Kind.TARGET_REFUSED,
            remedy="put them back where they were",
        )
    if layer.traits != layers.ORDINARY:
        raise LaunchError(
            f"layer {layer.id} was made by a container engine that runs as root",
            kind=Kind.UNSUPPORTED,
            remedy="go on in it with the container backend",
        )


@dataclass(frozen=True, slots=True)
class _View:
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

    @classmethod
    def of(cls, given: tuple[Target, ...], policy: Policy) -> _View:
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
            path = next((path for path in hidden if f"{target}/".startswith(f"{path}/")), None)
            if path is not None:
                raise LaunchError(
                    f"target {target} lies in {path}, which the policy hides",
                    kind=Kind.TARGET_REFUSED,
                    remedy=f"add {path!r} to Policy.readable if the work needs it",
                )
        overlaid = (*targets, *((home_layer,) if home_layer else ()))
        found = _hiding.arrange(hidden, overlaid, (*PRIVATE, *UNREACHABLE))
        for parent in found.parents:
            _refuse_layers_below(parent, f"{parent}, which is overlaid to hide paths in it", parent)
        writable = tuple(_existing(path) for path in policy.writable)
        for path in writable:
            secret = next((h for h in hidden if f"{h}/".startswith(f"{path}/")), None)
            if secret is not None:
                raise LaunchError(
                    f"the policy makes {path} writable for real, and hides {secret} in it",
                    kind=Kind.INVALID,
                    remedy="name a folder without secrets, or make the secret readable on purpose",
                )
        return cls(targets, writable, hidden, home, home_layer, found, healed)

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
        """Whether a path lies below an overlay or a private folder."""
        places = (*PRIVATE, "/dev", *self.targets, *((self.home_layer,) if self.home_layer else ()))
        return any(is_below(path, place) for place in (*places, *self.hiding.parents))

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


def _own_programs(policy: Policy) -> tuple[str, ...]:
    """What podbot itself needs inside: the interpreter it runs on, and ripgrep."""
    found = [sys.prefix, sys.base_prefix, interpreter.ripgrep() or "/"]
    if policy.python is not None and os.path.isabs(policy.python):
        found += [os.path.dirname(os.path.dirname(policy.python))]
    outer = [path for path in found if not any(is_below(path, other) for other in found)]
    return tuple(dict.fromkeys(path for path in outer if os.path.exists(path)))


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


def _host_failure(error: OSError) -> LaunchError:
    """What it means that the host could not do a plain thing, such as open a file."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        kind, remedy = Kind.OUT_OF_DESCRIPTORS, "raise the limit on open files (ulimit -n)"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind, remedy = Kind.DISK_FULL, "free some space where the sandbox's layer lies"
    elif error.errno in (errno.EAGAIN, errno.ENOMEM):
        kind, remedy = Kind.OUT_OF_PROCESSES, "end some processes, or raise their limit (ulimit -u)"
    else:
        kind, remedy = Kind.LAUNCH_FAILED, "run `podbot doctor`"
    return LaunchError(f"the sandbox could not be started: {error}", kind=kind, remedy=remedy)


def await_ready(line: socket.socket) -> None:
    """Wait until the sandbox stands, or raise what its set-up says went wrong."""
    line.settimeout(READY_SECONDS)
    try:
        head_size, _ = wire.HEADER.unpack(_exactly(line, wire.HEADER.size))
        if head_size > wire.MAX_HEAD:
            raise wire.broken("its first word is too long")
        head = json.loads(_exactly(line, head_size))
    except TimeoutError:
        raise LaunchError(
            f"the sandbox was not ready after {READY_SECONDS:.0f} s",
            kind=Kind.GUEST_UNRESPONSIVE,
            remedy="look for a hanging mount (NFS, FUSE) on this host",
        ) from None
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"the sandbox ended before it was ready: {error}",
            kind=Kind.LAUNCH_FAILED,
            remedy="run `podbot doctor`",
        ) from None
    problem = head.get("error")
    if problem is not None:
        failure = launch_failure(problem)
        raise LaunchError(failure.message, kind=failure.kind, remedy=failure.remedy)


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise ConnectionResetError("it hung up")
        data += part
    return data


class OverlaySandbox(Sandbox):
    """A sandbox of the overlay backend; see `OverlayLauncher` for the parameters.

    ``layer`` is where its changes are, and stays usable after `close`.
    """

    def __init__(
        self,
        target: Target | Sequence[Target] | None = None,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        discard: bool = False,
        layer: Layer | None = None,
        title: str | None = None,
    ):
        super().__init__(
            OverlayLauncher(
                target, policy=policy, limits=limits, discard=discard, layer=layer, title=title
            )
        )
