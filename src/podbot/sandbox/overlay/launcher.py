"""The overlay backend: a copy-on-write view of chosen folders, really closed, no privileges needed.

This module decides; `_setup.py` does. It checks the targets, makes the layer, plans the mounts,
has the zygote fork the guest, and says what is enforced on this host and by what.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podbot.errors import Kind, LaunchError
from podbot.sandbox import bookkeeping, interpreter, layers
from podbot.sandbox.folders import Target, current_folder
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.layers import Layer, copying, mounts
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.limits import Limits
from podbot.sandbox.overlay import (
    _failures,
    _git_data,
    _hiding,
    _key_files,
    _programs,
    _report,
    cgroups,
    owner,
)
from podbot.sandbox.overlay._running import Below, Running
from podbot.sandbox.overlay._view import View
from podbot.sandbox.overlay.cgroups import Group
from podbot.sandbox.overlay.shared import PRIVATE
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from podbot.sandbox.overlay._plan import Bind, Overlay, Plan


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
                    "a sandbox that goes on in a layer keeps the targets of that layer",
                    kind=Kind.INVALID,
                    remedy="leave out target",
                )
            self.targets = layer.targets
        elif target is None:
            self.targets = (current_folder(),)
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
        try:
            return self._launch()
        except OSError as error:
            raise _failures.nested(_failures.of_the_host(error)) from error
        except LaunchError as error:
            nested = _failures.nested(error)
            if nested is error:
                raise
            raise nested from error

    def _launch(self) -> Launched:
        machine = os.uname().machine
        if machine not in ("x86_64", "aarch64"):
            raise LaunchError(
                f"the overlay backend does not know the machine {machine}",
                kind=Kind.UNSUPPORTED,
                remedy="use a container backend",
            )
        view = View.of(self.targets, self.policy)
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

    def _start(self, view: View, method: str, reason: str | None) -> Launched:
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

    def _go_on(self, view: View, layer: Layer) -> Launched:
        _check_going_on(view, layer)
        lock = layers.reopen(layer, view.home_layer is not None, view.hidden)
        reason = _CONTINUES_A_COPY if layer.method == "copy" else None
        return self._run(view, layer, lock, reason)

    def _go_on_over(self, view: View, below: Layer) -> Launched:
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
        view: View,
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
        number = gateway = handed = None
        try:
            if self.policy.network.proxied:
                from podbot.sandbox.gateway import Gateway  # few sandboxes have one

                gateway = Gateway(self.policy.network, self.policy.routes)
            group = self._group()
            plan = self._plan(view, layer, group, below)
            zygote = owner.zygote()
            order = owner.Order(
                plan, self.policy.network.separate, [str(folder) for folder in group.folders],
                str(layer.path.parent),
            )  # fmt: skip
            number = zygote.start(order, theirs, lock)
            theirs.close()
            # Said while the child works; then wait for it.
            guarantees = _report.guarantees(self.policy, self.limits, group, reason)
            notes = _report.notes(view.targets, view.hiding.uncovered, view.home_layer, reason)
            notes = (*view.healed, *_key_files.notes(view.by_rule, view.home), *notes)
            handed = None if gateway is None else list[int]()
            ready = _failures.await_ready(ours, handed)
            if gateway is not None and handed is not None:
                gateway.take(handed)
                if not self.discard:
                    gateway.note_in(layer)
            guarantees += _report.veiled(plan["veils"], ready.veiled)
        except BaseException:
            ours.close()
            theirs.close()
            os.close(lock)
            for fd in handed or ():
                os.close(fd)
            if gateway is not None:
                gateway.close()
            if number is not None:
                zygote.end(number)
            group.remove()
            raise
        os.close(lock)  # the zygote's copy keeps the layer locked while the sandbox lives
        kept = bookkeeping.Kept(
            layer, self.name, self.policy.network, guarantees, notes, self.title, time.time()
        )
        goes_on = self.layer is not None and below is None
        running = Running(kept, group, zygote, number, self.discard, below, goes_on, gateway)
        if self.limits.disk is not None:
            running.watch_disk(self.limits.disk)
        if self.limits.memory is not None and "memory" not in group.enforced:
            running.watch_memory(self.limits.memory, ready.pid)
        return Launched(
            workdir=view.targets[0],
            guarantees=guarantees,
            end=running.end,
            connection=ours,
            died=running.reason,
            layer=layer,
            notes=notes,
            gateway=gateway,
        )

    def _group(self) -> Group:
        limits = self.limits
        pids = None if limits.pids is None or _report.pids_by(limits.pids) else limits.pids
        return cgroups.create(limits.cpu, limits.memory, pids)

    def _plan(self, view: View, layer: Layer, group: Group, below: Below | None) -> Plan:
        overlays: list[Overlay] = []
        binds: list[Bind] = []
        for index, target in enumerate(view.targets):
            upper = str(layer.upper(index))
            if layer.method == "copy":
                binds.append(_shown(target, upper, writable=True))
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
            binds.append(_shown(path, writable=True))
        covers = dict(view.hiding.covers)
        for path in mounts.sockets():
            # Sockets are not reachable through an overlay, nor below a private folder.
            if not view.is_covered(path) and os.path.lexists(path):
                covers[path] = _hiding.empty_file()
        if not view.is_covered(str(layer.path.parent)):
            covers[str(layer.path.parent)] = _hiding.empty_folder()
        for path, cover in covers.items():
            binds.append(_shown(path, cover, covers=True))
        shown, passed = _programs.needed(self.policy.python)
        if passed:
            shown = shown | dict.fromkeys(passed, _hiding.empty_folder())
        for at, source in shown.items():
            if not any(at == target or is_below(at, target) for target in view.targets):
                binds.append(_shown(at, source))
        for target in view.targets:
            place = _git_data.outside(target, view.targets)
            repository = _git_data.repository(place, target) if place else None
            if repository is not None:
                binds.append(_shown(repository))
        environment = self.policy.environment_inside(Path(view.home_inside))
        if any(_git_data.around(target, view.targets) for target in view.targets):
            environment.setdefault(_git_data.ACROSS, "1")
        veiling = view.veiling(
            self.policy, [bind["at"] for bind in binds if not bind["covers"]], environment["PATH"]
        )
        binds += [_shown(path) for path in veiling.shown]
        private = [path for path in PRIVATE if os.path.isdir(path)]
        writable = [*private, "/dev", *view.targets]
        writable += [view.home_layer] if view.home_layer else []
        writable += [bind["at"] for bind in binds if bind["writable"]]
        pids = self.limits.pids
        return {
            "overlays": overlays,
            "binds": binds,
            "veils": list(veiling.folders),
            "openings": list(veiling.openings),
            "writable": list(dict.fromkeys(writable)),
            "rlimits": _report.rlimits(self.limits, group),
            "pid_max": pids if pids and _report.pids_by(pids) == "pid_max" else None,
            "listen": self.policy.network.port,
            "config": {
                "workdir": view.targets[0],
                "root": view.targets[0] if self.confined else "/",
                "env": environment,
                "python": self.policy.python,
                "rg": interpreter.ripgrep(),
                "private": private,
            },
        }


def _shown(at: str, source: str = "", *, writable: bool = False, covers: bool = False) -> Bind:
    """Something of the host's at a place; by default what is there."""
    return {"source": source or at, "at": at, "writable": writable, "covers": covers}


_CONTINUES_A_COPY = "it continues in a layer that is a copy"


def _check_going_on(view: View, layer: Layer) -> None:
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
