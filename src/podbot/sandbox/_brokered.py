"""Routes of a policy: services whose keys are added outside, and what programs inside find them by.

What is inside is an address on the loopback and a placeholder. The key is on the host, and so is
the word for where it lies: this module keeps both out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from podbot.errors import Kind, SandboxError
from podbot.sandbox.network import Network
from podbot.sandbox.values import Guarantee

if TYPE_CHECKING:
    from podbot.egress import Route


def checked(given: object, network: Network) -> tuple[tuple[Route, ...], Network]:
    """The routes of a policy, and the network that leads to them.

    Raises `SandboxError` for what is none, and where there is no proxy to go through; of two with
    one name, `EgressError`.
    """
    from podbot.egress import Broker, Route

    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _no_route(type(given))
    routes: list[Route] = []
    for each in given:
        if not isinstance(each, Route):
            raise _no_route(type(each))  # its text may hold a key
        routes.append(each)
    Broker(routes)
    if routes and not network.separate:
        raise SandboxError(
            "a route goes through podbot's proxy, and the network of this machine has none",
            kind=Kind.INVALID,
            remedy="leave out network, or name the other hosts: Network.allow(…)",
        )
    if routes and not network.proxied:
        network = Network("allow")
    return tuple(routes), network


def variables(routes: Iterable[Route]) -> dict[str, str]:
    """What is set inside for these; where two want the same, the first has it."""
    from podbot.sandbox import gateway

    found: dict[str, str] = {}
    for route in routes:
        url = f"http://{gateway.HOST}:{gateway.PORT}/{route.name}"
        for name, value in route.variables.items():
            found.setdefault(name, value.replace("{url}", url))
    return found


def without_keys(passed: Mapping[str, str], routes: Iterable[Route]) -> dict[str, str]:
    """Variables of the host, less those that hold the key of a route, by whatever name."""
    keys = _keys(routes)
    return {
        name: value
        for name, value in passed.items()
        if name not in keys and value not in keys.values()
    }


def refuse_keys(environment: Mapping[str, str], routes: Iterable[Route]) -> None:
    """Raises if a variable that the caller sets would bring the key of a route inside."""
    keys = _keys(routes)
    for name, value in environment.items():
        if value in keys.values():
            raise SandboxError(
                f"the variable {name} would bring a key inside that a route keeps outside",
                kind=Kind.INVALID,
                remedy=f"leave {name} out of the environment: there is a placeholder for it",
            )


def key_files(routes: Iterable[Route]) -> tuple[str, ...]:
    """The files of the host in which the keys lie: nobody inside may read them."""
    from podbot.egress import FromFile

    sources = (route.source for route in routes)
    return tuple(os.path.abspath(each.path) for each in sources if isinstance(each, FromFile))


def guarantees(routes: Iterable[Route]) -> tuple[Guarantee, ...]:
    """What is kept to for each. Where the key lies is not said, as these are kept and shown."""
    return tuple(
        Guarantee(
            f"route:{route.name}",
            True,
            f"podbot's proxy outside adds the key, towards {route.base}; inside is none",
        )
        for route in routes
    )


def refuse(routes: Iterable[Route], backend: str) -> None:
    """Raises if there are any, for a backend without a proxy."""
    if tuple(routes):
        raise SandboxError(
            f"the backend {backend} has no proxy that routes could go through",
            kind=Kind.UNSUPPORTED,
            remedy="use overlay or container, or leave out Policy.routes",
        )


def _keys(routes: Iterable[Route]) -> dict[str, str]:
    from podbot.egress import FromVariable

    names = {each.source.name for each in routes if isinstance(each.source, FromVariable)}
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _no_route(what: type) -> SandboxError:
    return SandboxError(
        f"Policy.routes must be a tuple of routes, and there is a {what.__name__}",
        kind=Kind.INVALID,
        remedy='write routes=(podbot.egress.route_of("anthropic"),)',
    )
