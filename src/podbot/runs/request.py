"""What a caller asks for who wants something run: what, where, and what it may see.

One value for `podbot run`, `podbot shell`, `podbot mcp` and whoever starts agents. All of it is
fixed before anything starts; nothing a command, a client or a model says changes it. An option that
a backend does not support is refused instead of left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass, field, frozen_dict
from podbot.sandbox import backends
from podbot.sandbox.limits import Limits
from podbot.sandbox.network import Network
from podbot.sandbox.policy import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, Policy

if TYPE_CHECKING:
    from podbot.egress import Route
    from podbot.sandbox.network import Word
    from podbot.sandbox.publishing import Port

DEFAULT_BACKEND = backends.OVERLAY
REVIEWED: tuple[str, ...] = (backends.OVERLAY, backends.CONTAINER)
"""The backends of podbot's own that keep changes apart, and close in what they run."""

_KEPT_TO_BY: Mapping[str, tuple[str, ...]] = {
    "network": REVIEWED,
    "hide": (*REVIEWED, backends.MEMORY),
    "show": (*REVIEWED, backends.MEMORY),
    "environment": (*REVIEWED, backends.LOCAL),
    "pass_environment": (*REVIEWED, backends.LOCAL),
    "image": (backends.CONTAINER,),
    "name": REVIEWED,
    "title": REVIEWED,
    "continue_in": REVIEWED,
    "discard": REVIEWED,
    "publish": REVIEWED,
    "routes": REVIEWED,
}


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to run, where, and what it may see.

    - ``backend``: ``overlay``, ``container`` (or ``podman``), ``local``, ``memory``, or what a
      package registered. None is ``overlay``; in ``continue_in``, that of the earlier run.
    - ``targets``: folders whose changes are kept for review; default the current one. The command
      starts in the current folder if that lies in a target, else in the first target.
      ``container`` and ``local`` take one; **``local`` works on it itself**, and isolates nothing.
    - ``network``: None is the backend's own way, which is none where it can close it.
    - ``hide``, ``show``: absolute paths to hide besides the usual ones, and exceptions.
    - ``environment``: variables to set inside; ``pass_environment``: host variables to pass on
      besides the usual ones.
    - ``name``: what people may call the run instead of its id; ``title``: what it is for.
    - ``timeout``: seconds; then the command is told to end, and killed if it does not.
    - ``continue_in``: an earlier run (id, start of one, name, ``last``) in whose layer to go on.
    - ``discard``: throw away what it changes. An earlier run it continues in stays as it was.
    - ``image``: of a container.
    - ``publish``: ports of the sandbox to be had at the host's loopback while the command runs, as
      ``PORT``, ``HOST:PORT`` with the host's port first, or `Port`.
    - ``routes``: services whose key stays on the host and is added outside: a
      `podbot.egress.Route`, or a word such as ``anthropic=env:ANTHROPIC_API_KEY`` (`route_of`).
    """

    command: tuple[str, ...] = ()
    targets: tuple[str | os.PathLike[str], ...] = ()
    network: Network | Word | None = None
    hide: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=frozen_dict)
    pass_environment: tuple[str, ...] = ()
    name: str | None = None
    timeout: float | None = None
    continue_in: str | None = None
    limits: Limits | None = None
    discard: bool = False
    backend: str | None = None
    image: str | None = None
    title: str | None = None
    publish: tuple[str | int | Port, ...] = ()
    routes: tuple[str | Route, ...] = ()

    def __post_init__(self) -> None:
        if self.network is not None:
            object.__setattr__(self, "network", Network(self.network))
        if self.publish:
            from podbot.sandbox.publishing import Port

            object.__setattr__(self, "publish", tuple(map(Port.of, self.publish)))
            if not Network(self.network or Network.none).separate:
                raise ConfigError(
                    "what listens in the network of this machine needs not be published",
                    kind=Kind.INVALID,
                    remedy="leave out publish: it is at the host's loopback already",
                    field="publish",
                )
        if self.routes:
            object.__setattr__(self, "routes", self._routes_meant())
        backend = self.backend
        if backend is None:
            return
        backend = backends.real_name(backend)
        object.__setattr__(self, "backend", backend)  # it is frozen for everybody else
        if backend not in backends.NAMES:
            return  # what another package's can keep to, it says itself
        for option, able in _KEPT_TO_BY.items():
            if getattr(self, option) and backend not in able:
                raise ConfigError(
                    f"the backend {backend} does not support {option}",
                    kind=Kind.UNSUPPORTED,
                    remedy=f"leave it out, or use {' or '.join(able)}",
                    field=option,
                )

    @property
    def isolates(self) -> bool:
        """Whether anything is between what runs and the machine, as far as podbot knows."""
        return self.backend != backends.LOCAL

    def _routes_meant(self) -> tuple[Route, ...]:
        from podbot.egress import route_of

        if self.network is not None and not Network(self.network).proxied:
            raise ConfigError(
                f"the network {self.network} and a route contradict each other",
                kind=Kind.INVALID,
                remedy="leave out the network: a route opens it for what the route leads to only",
                field="routes",
            )
        return tuple(route_of(each) if isinstance(each, str) else each for each in self.routes)

    def policy(self) -> Policy:
        """What the sandbox may see and reach."""
        return Policy(
            network=self.network or Network.none,
            hidden=(*DEFAULT_HIDDEN, *self.hide),
            readable=self.show,
            environment=self.environment,
            pass_environment=(*DEFAULT_ENVIRONMENT, *self.pass_environment),
            routes=tuple([each for each in self.routes if not isinstance(each, str)]),
        )
