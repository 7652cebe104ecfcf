"""Where an engine may be reached: the forms an endpoint is written in, and what they mean.

Pure: nothing here opens anything. An endpoint keeps the text it was written as, because errors
must name what the user wrote.
"""

from __future__ import annotations

from typing import Literal

from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass

Scheme = Literal["unix", "npipe", "tcp", "http", "https", "ssh"]

DEFAULT_PORTS = {"tcp": 2375, "http": 2375, "https": 2376, "ssh": 22}
LOOPBACK = ("localhost", "127.0.0.1", "::1")

FORMS = "unix:///path, tcp://host:port, http://…, https://…, ssh://user@host/path or a plain path"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine's address, taken apart.

    ``path`` is that of a socket or pipe (on the far side, for ssh). ``identity`` is the key file of
    an ssh connection.
    """

    text: str
    scheme: Scheme
    path: str = ""
    host: str = ""
    port: int = 0
    user: str = ""
    identity: str | None = None

    @property
    def is_socket(self) -> bool:
        """Whether it has a file of this machine, which can be missing or forbidden."""
        return self.scheme in ("unix", "npipe")

    @property
    def is_local(self) -> bool:
        """Whether the engine sees the same files as we do. A loopback port may be anyone's."""
        return self.scheme == "unix"

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent to it stays on this machine."""
        return self.host in LOOPBACK or self.host.startswith("127.")

    def __str__(self) -> str:
        return self.text


def parse(text: str, identity: str | None = None) -> Endpoint:
    """An endpoint from its text; raises `ConfigError` for one that cannot be meant."""
    text = text.strip()
    if not text:
        raise _bad(text, "it is empty")
    if any(not char.isprintable() for char in text):
        raise _bad(text, "it holds control characters")
    # By its syntax, not by the platform: a configuration means the same everywhere.
    if text.startswith(("\\\\", "//")):
        return Endpoint(text, "npipe", path=text)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Endpoint(text, "unix", path=text)
    scheme = scheme.lower()
    if scheme == "unix":
        if not rest.startswith("/"):
            raise _bad(text, "the path of a socket is absolute")
        return Endpoint(text, "unix", path=rest)
    if scheme == "npipe":
        return Endpoint(text, "npipe", path=rest)
    if scheme in ("tcp", "http", "https", "ssh"):
        return _remote(text, scheme, rest, identity)
    raise _bad(text, f"{scheme} is not a way to reach an engine")


def _remote(text: str, scheme: str, rest: str, identity: str | None) -> Endpoint:
    place, slash, path = rest.partition("/")
    user, at, place = place.rpartition("@")
    host, port = _host_and_port(text, place, DEFAULT_PORTS[scheme])
    if not host or host.startswith("-"):
        # A host that looks like an option would be one to the ssh program.
        raise _bad(text, "it names no host")
    if scheme == "ssh":
        if user.startswith("-") or ":" in user:
            raise _bad(text, "its user is not valid (passwords are not taken from it)")
        if not path or ":" in path:
            raise _bad(text, "it must end with the socket's path on that host")
        return Endpoint(text, "ssh", slash + path, host, port, user, identity)
    if at:
        raise _bad(text, "a user is only part of an ssh endpoint")
    if path:
        raise _bad(text, "a path after the host is not supported")
    if scheme == "tcp":
        return Endpoint(text, "tcp", host=host, port=port)
    return Endpoint(text, "http" if scheme == "http" else "https", host=host, port=port)


def _host_and_port(text: str, place: str, default: int) -> tuple[str, int]:
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _bad(text, "its address is not closed by ]")
        digits = rest[1:]
    else:
        host, _, digits = place.partition(":")
    if not digits:
        return host, default
    if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) < 65536:
        raise _bad(text, "its port is not a number from 1 to 65535")
    return host, int(digits)


def _bad(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not an engine's endpoint: {why}",
        kind=Kind.INVALID,
        remedy=f"write it as {FORMS}",
        field="engine_socket",
    )
