"""A request of a route: judged, stripped of what may be a credential, and given the real one."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import h11

from podbot.egress import _requests
from podbot.egress._noting import Entry, Turned, unreachable
from podbot.egress._requests import Headers
from podbot.egress.broker import Broker, Route, authority, is_ours, may_be_credential
from podbot.egress.broker import without_credentials as stripped
from podbot.egress.credentials import FromCommand, FromFile, FromVariable
from podbot.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent, and on which route. Holds the credential: never shown or noted."""

    route: Route
    request: h11.Request


async def order(request: h11.Request, entry: Entry, broker: Broker) -> Order:
    """What a request of a program inside becomes; `Turned` if it may not."""
    headers = request.headers.raw_items()
    target, mark, query = request.target.decode("ascii").partition("?")
    method = request.method.decode("ascii")
    host = _requests.header(headers, b"host")
    if host is not None and not is_ours(host):
        raise Turned("a route is asked by the proxy's own address, and the Host header has another")
    found = broker.find(target)
    if found is None:
        names = ", ".join(f"/{route.name}/" for route in broker.routes)
        raise Turned(f"no route begins like this; there are {names or 'none'}")
    route, path = found
    entry.path, entry.rule = path, f"route {route.name}"
    _, entry.host, entry.port, base = route.place
    if not route.permits(method, path):
        raise Turned(f"the route {route.name} does not permit {method} {path}")
    credential = await _read(route)
    passed: Headers = [(b"Host", authority(route).encode())]
    passed += [
        (name, value)
        for name, value in _requests.passed_on(headers)
        if name.lower() not in (b"host", route.header.lower().encode())
        and not may_be_credential(name.decode("ascii"))
    ]
    passed.append((route.header.encode(), route.form.format(credential).encode()))
    passed.append((b"Connection", b"close"))
    outward = base + path + stripped(mark + query)
    return Order(route, h11.Request(method=request.method, target=outward, headers=passed))


def answered(headers: Headers) -> Headers:
    """The headers of an answer, without what a service would know the host's account by."""
    return [
        each
        for each in _requests.passed_on(headers)
        if each[0].lower() not in (b"set-cookie", b"set-cookie2")
    ]


async def _read(route: Route) -> str:
    """The credential. A thread asks, as a command may take its time.

    Without one it is said of which route. Where it should have come from is not: what is said here
    is read inside, and kept.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str | None] = loop.create_future()

    def finish(found: str | None) -> None:
        if not done.done():
            done.set_result(found)

    def ask() -> None:
        try:
            found: str | None = route.source.read()
        except Exception:  # also of a source of somebody else; what it says may hold secrets
            found = None
        with suppress(RuntimeError):  # the proxy was closed meanwhile
            loop.call_soon_threadsafe(finish, found)

    threading.Thread(target=ask, name="podbot-egress-credential", daemon=True).start()
    found = await done
    if found is None:
        why = _WHY.get(type(route.source), "its source gives none")
        raise unreachable(f"the host has no credential for the route {route.name}: {why}")
    return found


_WHY: Mapping[type, str] = {
    FromVariable: "its variable is not set, or holds none",
    FromFile: "its file cannot be read, or holds none",
    FromCommand: "its command gives none",
}
