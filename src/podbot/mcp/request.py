"""What a person asks for when starting a server: which backend, which folder, what it may see.

All of it is fixed before the first message is read. Nothing a client or a model says changes it. A
backend that cannot keep to an option refuses it instead of leaving it out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass, field
from podbot.sandbox.network import Network
from podbot.sandbox.policy import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, Policy

if TYPE_CHECKING:
    from podbot.sandbox.network import Word

Backend = Literal["memory", "local", "overlay", "podman"]
BACKENDS: tuple[str, ...] = get_args(Backend)


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """Which tools to serve, and where they work.

    - ``target``: the folder the tools work on. ``overlay``, ``podman``: its changes are kept for
      review (default the current one). ``memory``: it is copied; without one they begin empty.
      ``local``: it is changed at once; without one they have a temporary folder.
    - ``network``: for ``overlay`` and ``podman``; None is the backend's own way.
    - ``hide``, ``show``: absolute paths to hide besides the usual ones, and exceptions.
    - ``environment``: variables that commands see; ``pass_environment``: those of the host to pass
      on besides the usual ones.
    - ``call_seconds``: the most that one call may take. ``data``: results are sent as data too.
    - ``image``: for ``podman``.
    - ``name``, ``command``: what the record of the changes says.
    """

    backend: Backend = "overlay"
    target: str | os.PathLike[str] | None = None
    network: Network | Word | None = None
    hide: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pass_environment: tuple[str, ...] = ()
    call_seconds: float | None = None
    data: bool = False
    image: str | None = None
    name: str | None = None
    command: tuple[str, ...] = ("podbot", "mcp")

    def __post_init__(self) -> None:
        if self.network is not None:
            object.__setattr__(self, "network", Network(self.network))
        if self.backend not in BACKENDS:
            raise ConfigError(
                f"there is no backend {self.backend!r}",
                kind=Kind.UNKNOWN_BACKEND,
                remedy=f"use one of: {', '.join(BACKENDS)}",
                field="backend",
            )
        for option, backends in _SERVED_BY.items():
            if getattr(self, option) and self.backend not in backends:
                raise ConfigError(
                    f"the backend {self.backend} cannot keep to {option}",
                    kind=Kind.UNSUPPORTED,
                    remedy=f"leave it out, or use {' or '.join(backends)}",
                    field=option,
                )

    @property
    def reaches_out(self) -> bool:
        """Whether commands can get beyond the sandbox, to a network above all."""
        return self.backend == "local" or self.policy().network.reaches_out

    def policy(self) -> Policy:
        """What the sandbox may see and reach."""
        return Policy(
            network=self.network or Network.none,
            hidden=(*DEFAULT_HIDDEN, *self.hide),
            readable=self.show,
            environment=self.environment,
            pass_environment=(*DEFAULT_ENVIRONMENT, *self.pass_environment),
        )


_CLOSED: tuple[Backend, ...] = ("overlay", "podman")
_SERVED_BY: Mapping[str, tuple[Backend, ...]] = {
    "network": _CLOSED,
    "hide": (*_CLOSED, "memory"),
    "show": (*_CLOSED, "memory"),
    "environment": (*_CLOSED, "local"),
    "pass_environment": (*_CLOSED, "local"),
    "image": ("podman",),
    "name": _CLOSED,
}
