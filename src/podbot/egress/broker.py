"""Routes to services that want a credential: it is added on the host, so that none is inside.

A program inside asks ``http://127.0.0.1:PORT/NAME/…``, its base URL, with a placeholder for a key
or none. Only the paths a route lists are passed on; whatever may be a credential is taken away; the
real one is added, and the rest goes on over TLS. Knows no agent: it is given routes and sources.
"""

from __future__ import annotations

import re

from podbot.egress.names import HOST_NAME, OddHostError, host_of, shown
from podbot.egress.rules import is_straight
from podbot.errors import EgressError, Kind
from podbot.frozen import dataclass, field, frozen_dict

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from podbot.egress.credentials import Source

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_BASE = re.compile(r"(?P<scheme>https?)://(?P<host>\[[^\]]+\]|[^/?#@:\[\]]+)(?::(?P<port>[0-9]{1,5}))?"
                   r"(?P<path>(?:/[^/?#\s]+)*)/?")  # fmt: skip
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_ALLOWED = re.compile(r"(?P<method>[A-Z]+) (?P<path>/[^\s?#]*)")


@dataclass(frozen=True, slots=True)
class Route:
    """One service, and what may be asked of it."""

    name: str
    """The first part of the path, by which a program inside asks for it."""
    base: str
    """Where it is: ``https://HOST[:PORT][/PATH]``; ``http://`` only on this machine."""
    source: Source
    """Where its credential comes from."""
    allows: tuple[str, ...]
    """``METHOD /PATH``: that path, or what is below it if the word ends in ``/``."""
    header: str = "Authorization"
    """The header that the credential is sent in."""
    form: str = "Bearer {}"
    """Its value, with the credential in place of the braces."""
    variables: Mapping[str, str] = field(default_factory=frozen_dict)
    """What programs inside find it by, and the placeholder they want; ``{url}`` is its base URL."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise _bad(self.name, "its name is not of the form anthropic, my-model")
        if _HEADER.fullmatch(self.header) is None or self.form.count("{}") != 1:
            raise _bad(self.name, "a header has a name of letters, and a value with {} in it")
        object.__setattr__(self, "variables", frozen_dict(self.variables))
        for word in self.allows:
            match = _ALLOWED.fullmatch(word)
            if match is None or not is_straight(match["path"]):
                raise _bad(self.name, f"{word!r} is not METHOD /PATH")
        scheme, host, _, _ = self.place
        if scheme == "http" and host != HOST_NAME:
            raise _bad(self.name, f"without TLS a credential goes to {HOST_NAME}:PORT only")

    def __repr__(self) -> str:
        # Policies have routes, and are shown: where the credential lies is not for everybody.
        return f"Route({self.name!r}, {self.base!r})"

    @property
    def place(self) -> tuple[str, str, int, str]:
        """The base taken apart: scheme, host in its one spelling, port, path."""
        match = _BASE.fullmatch(self.base)
        if match is None:
            raise _bad(self.name, "its base is not https://HOST[:PORT][/PATH]")
        try:
            host = host_of(match["host"])
        except OddHostError as error:
            raise _bad(self.name, str(error)) from None
        port = int(match["port"]) if match["port"] else {"https": 443, "http": 80}[match["scheme"]]
        if not 0 < port < 65536:
            raise _bad(self.name, "there is no such port")
        return match["scheme"], host, port, match["path"]

    def permits(self, method: str, path: str) -> bool:
        """Whether a request may be passed on; the path is without the route's name."""
        if not is_straight(path):
            return False
        for word in self.allows:
            verb, _, allowed = word.partition(" ")
            below = path.startswith(allowed) and path != allowed
            if verb == method and (below if allowed.endswith("/") else path == allowed):
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Kind:
    """A well-known interface."""

    base: str
    allows: tuple[str, ...]
    header: str
    form: str
    key: str
    """The variable in which its key is looked for, inside and on the host."""
    placeholder: str
    """What stands in it inside: of the shape that programs check for."""
    url: tuple[str, str]
    """The variable for its base URL, and what it has behind that of the route."""


_BUILT_IN: Mapping[str, _Kind] = {
    "anthropic": _Kind(
        "https://api.anthropic.com",
        (
            "POST /v1/messages",
            "POST /v1/messages/count_tokens",
            "GET /v1/models",
            "GET /v1/models/",
        ),
        "X-Api-Key",
        "{}",
        "ANTHROPIC_API_KEY",
        f"sk-ant-api03-{'placeholder-of-podbot-':0<93}AA",
        ("ANTHROPIC_BASE_URL", ""),
    ),
    "gemini": _Kind(
        "https://generativelanguage.googleapis.com",
        (
            "POST /v1/models/",
            "POST /v1beta/models/",
            "GET /v1/models",
            "GET /v1beta/models",
            "GET /v1beta/models/",
        ),
        "X-Goog-Api-Key",
        "{}",
        "GEMINI_API_KEY",
        f"AIza{'placeholder-of-podbot-':0<35}",
        ("GOOGLE_GEMINI_BASE_URL", ""),
    ),
    "openai": _Kind(
        "https://api.openai.com",
        (
            "POST /v1/responses",
            "POST /v1/chat/completions",
            "POST /v1/embeddings",
            "GET /v1/models",
            "GET /v1/models/",
        ),
        "Authorization",
        "Bearer {}",
        "OPENAI_API_KEY",
        f"sk-{'placeholderofpodbot':0<48}",
        ("OPENAI_BASE_URL", "/v1"),
    ),
}
BUILT_IN: tuple[str, ...] = tuple(_BUILT_IN)
"""The interfaces that are known."""


def built_in(
    kind: str, source: Source, *, name: str | None = None, base: str | None = None
) -> Route:
    """A route for a well-known interface: ``anthropic``, ``gemini`` or ``openai``.

    Another ``base`` is for services that speak the same, under a ``name`` of their own.
    """
    known = _known(kind)
    variable, behind = known.url
    variables = {variable: "{url}" + behind, known.key: known.placeholder}
    return Route(
        name or kind, base or known.base, source, known.allows, known.header, known.form, variables
    )


def usual_variable(kind: str) -> str:
    """Where people have the key for a well-known interface: ``ANTHROPIC_API_KEY``."""
    return _known(kind).key


def _known(kind: str) -> _Kind:
    if kind not in _BUILT_IN:
        raise EgressError(
            f"no route is built in for {kind!r}",
            kind=Kind.BAD_RULE,
            remedy=f"there are {', '.join(_BUILT_IN)}; a Route can be made for any other",
        )
    return _BUILT_IN[kind]


class Broker:
    """Some routes, by name. One that a broker was not given is not reached through it."""

    def __init__(self, routes: Iterable[Route]):
        self._routes: dict[str, Route] = {}
        for route in routes:
            if route.name in self._routes:
                raise _bad(route.name, "there are two of this name")
            self._routes[route.name] = route

    @property
    def routes(self) -> tuple[Route, ...]:
        """All of them."""
        return tuple(self._routes.values())

    def find(self, path: str) -> tuple[Route, str] | None:
        """The route that a path begins with, and the rest of the path; none if it is no route."""
        name, _, rest = path.removeprefix("/").partition("/")
        route = self._routes.get(name)
        return None if route is None else (route, f"/{rest}")


# What names of headers and parameters that carry credentials are made of.
_TELLING = {
    "apikey",
    "auth",
    "authentication",
    "authorization",
    "bearer",
    "code",
    "cookie",
    "cookie2",
    "credential",
    "credentials",
    "jwt",
    "key",
    "pass",
    "passwd",
    "password",
    "pwd",
    "secret",
    "sig",
    "signature",
    "token",
}
_KNOWN = {"idempotency-key", "sec-websocket-key"}
"""What only sounds like one."""


def may_be_credential(name: str) -> bool:
    """Whether a header or parameter of this name may carry a credential."""
    if name.lower() in _KNOWN:
        return False
    parts = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower())
    return bool(_TELLING & {*parts, "".join(parts)}) or any(
        part.endswith(("key", "token", "secret", "auth")) for part in parts
    )


def without_credentials(query: str) -> str:
    """A query, ``?`` included, without the parameters that may be credentials."""
    from urllib.parse import unquote_plus

    kept = [
        part
        for part in re.split(r"[&;]", query.removeprefix("?"))
        if part and not may_be_credential(unquote_plus(part.partition("=")[0]))
    ]
    return f"?{'&'.join(kept)}" if kept else ""


def is_ours(header: str) -> bool:
    """Whether a Host header names the proxy itself, as programs of the sandbox know it."""
    host, found, number = header.rpartition(":")
    if not found or header.endswith("]"):
        host = header
    elif not number.isdecimal():
        return False
    return host.lower() in ("127.0.0.1", "localhost", "[::1]")


def authority(route: Route) -> str:
    """The Host header for the service of a route."""
    scheme, host, port, _ = route.place
    if port == {"https": 443, "http": 80}[scheme]:
        return f"[{host}]" if ":" in host else host
    return shown(host, port)


def _bad(name: str, why: str) -> EgressError:
    return EgressError(f"the route {name!r} cannot be: {why}", kind=Kind.BAD_RULE)
