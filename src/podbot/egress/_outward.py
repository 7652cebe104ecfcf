"""The host's own way out: the proxy that its variables name, if they name one.

Read as curl and others read them: ``https_proxy`` is for tunnels and ``http_proxy`` for plain
requests, ``all_proxy`` for both, ``no_proxy`` for neither; lower case goes before upper case.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from podbot.egress._noting import unreachable
from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class NextProxy:
    """A proxy on the way out."""

    host: str
    port: int
    authorization: str | None = None

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What to tell it with each request."""
        return [("Proxy-Authorization", self.authorization)] if self.authorization else []


class Outward:
    """What the host's variables say, as they are when it is asked."""

    def __init__(self, environment: Mapping[str, str]):
        self._environment = environment

    def next_proxy(self, host: str, port: int, *, tunnel: bool) -> NextProxy | None:
        """The proxy to go through for a host; none if it is reached directly."""
        given = self._read("https_proxy" if tunnel else "http_proxy") or self._read("all_proxy")
        if not given or self._is_excepted(host, port):
            return None
        try:
            parts = urlsplit(given if "://" in given else f"http://{given}")
            place = parts.hostname or "", parts.port or 80
        except ValueError:
            place, parts = ("", 0), urlsplit("")
        if parts.scheme != "http" or not place[0]:
            raise unreachable(
                "the host's own proxy is not one of http://, which is all podbot uses"
            )
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + b64encode(pair.encode()).decode()
        return NextProxy(*place, authorization)

    def _is_excepted(self, host: str, port: int) -> bool:
        """Whether ``no_proxy`` names a host: itself, or what it is below."""
        for entry in self._read("no_proxy").lower().split(","):
            name, found, number = entry.strip().rpartition(":")
            if found and number.isdecimal() and int(number) != port:
                continue
            if not (found and number.isdecimal()):
                name = entry.strip()
            name = name.removeprefix("*").removeprefix(".").strip("[]")
            if entry.strip() == "*" or (name and (host == name or host.endswith(f".{name}"))):
                return True
        return False

    def _read(self, name: str) -> str:
        return self._environment.get(name) or self._environment.get(name.upper()) or ""
