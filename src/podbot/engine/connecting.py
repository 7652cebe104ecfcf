"""Finding an engine and connecting to it."""

from __future__ import annotations

from podbot.engine import endpoints
from podbot.engine.client import Client
from podbot.engine.dialing import SocketDialer, peer_uid
from podbot.engine.engine import Engine


def connect(endpoint: str | None = None) -> Engine:
    """Connect."""
    found = endpoints.parse(endpoint or "")
    dialer = SocketDialer(found.path)
    client = Client(dialer, found.text)
    sock = dialer.dial(None)
    uid = peer_uid(sock)
    client.adopt(sock)
    return Engine(client, found, "the endpoint argument", uid)
