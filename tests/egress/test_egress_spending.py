"""What whoever connects can make a proxy spend: descriptors, turns of others, time at the end."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import h11
import pytest
from small_web import PATIENCE, Server, echo, listening, named, proxied, read_head, wait_until

from podbot.egress import HOST_NAME, Proxy, Record, Rules, Verdict
from podbot.egress._http import Exchange
from podbot.egress._lines import Line
from podbot.egress.sockets import has_room


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """No more than so many for this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def none_left() -> Iterator[list[int]]:
    """Every descriptor is taken; those that were are in the list."""
    taken: list[int] = []
    with descriptors(_highest() + 40):
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                while True:
                    taken.append(os.dup(0))
            yield taken
        finally:
            for number in taken:
                os.close(number)


def _highest() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd"))


def test_a_quarter_of_the_descriptors_is_spared() -> None:
    with socket.socket() as sock, descriptors(800):
        assert has_room(sock)
        for number, room in ((599, True), (600, False), (799, False)):
            os.dup2(sock.fileno(), number, inheritable=False)
            with socket.socket(fileno=number) as high:
                assert has_room(high) is room


def test_connections_leave_descriptors_for_the_program() -> None:
    socks: list[socket.socket] = []
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        first, _ = through.tunnel(HOST_NAME, server.port)
        with first, descriptors(4 * (_highest() + 40) // 3):
            try:
                while not through.records:  # each is held here at both ends
                    before = len(through.proxy._lines)
                    socks.append(through.client())
                    wait_until(lambda n=before: through.records or len(through.proxy._lines) > n)
            finally:
                for sock in socks:
                    sock.close()
            first.sendall(b"goes on")
            assert first.recv(7) == b"goes on"

    assert through.record().verdict is Verdict.REFUSED
    assert "descriptors" in through.record().reason


def test_a_proxy_that_finds_no_descriptor_waits_for_some_and_can_be_closed() -> None:
    listener = listening()
    place = listener.getsockname()
    records: list[Record] = []
    with Proxy(Rules(), records.append) as proxy, socket.socket() as client:
        proxy.serve(listener)
        with none_left():
            client.connect(place)
            client.sendall(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
            client.settimeout(0.5)
            with pytest.raises(TimeoutError):
                client.recv(1)
        client.settimeout(PATIENCE)
        assert read_head(client).startswith(b"HTTP/1.1 403 ")

    listener = listening()
    place = listener.getsockname()
    with Proxy(Rules()) as proxy, socket.socket() as client:
        proxy.serve(listener)
        with none_left():
            client.connect(place)
            proxy.close()


def test_a_side_that_is_never_behind_leaves_others_their_turn() -> None:
    async def turns() -> int:
        found = 0

        async def count() -> None:
            nonlocal found
            while True:
                found += 1
                await asyncio.sleep(0)

        # Of these each piece is one message: there is always a next one.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            line = Line(ours, asyncio.get_running_loop())
            counting = asyncio.create_task(count())
            for _ in range(10):
                for _ in range(10):
                    theirs.send(b"x")
                for _ in range(10):
                    await line.receive()
            counting.cancel()
        return found

    assert asyncio.run(turns()) >= 4


def test_a_piece_of_many_chunks_leaves_others_their_turn() -> None:
    async def turns() -> int:
        found = 0

        async def count() -> None:
            nonlocal found
            while True:
                found += 1
                await asyncio.sleep(0)

        loop = asyncio.get_running_loop()
        client, client_end = socket.socketpair()
        far, far_end = socket.socketpair()
        with client, client_end, far, far_end:
            conn = h11.Connection(h11.SERVER)
            conn.receive_data(
                b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"
            )  # fmt: skip
            request = conn.next_event()
            assert isinstance(request, h11.Request)
            exchange = Exchange(Line(client, loop), conn, Line(far, loop), False)
            exchange.there.send(request)
            reading = threading.Thread(target=lambda: far_end.makefile("rb").read())
            reading.start()
            counting = asyncio.create_task(count())
            await exchange._body()
            counting.cancel()
            far.shutdown(socket.SHUT_WR)
            reading.join(PATIENCE)
        return found

    assert asyncio.run(turns()) >= 50


def test_a_listener_that_would_have_closing_wait_cannot() -> None:
    listener = listening()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    place = listener.getsockname()

    def flood(sock: socket.socket) -> None:
        while True:
            sock.sendall(bytes(65536))

    with Server(flood) as server:
        proxy = Proxy(Rules.of(named(server)), environment={})
        proxy.serve(listener)
        with socket.create_connection(place, PATIENCE) as client:
            target = named(server).encode()
            client.sendall(b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + target + b"\r\n\r\n")
            read_head(client)  # and nothing more: the rest is stuck in between
            wait_until(lambda: any(_stuck(line.sock) for line in proxy._lines))
            ending = threading.Thread(target=proxy.close, daemon=True)
            ending.start()
            ending.join(PATIENCE)
            assert not ending.is_alive()


def _stuck(sock: socket.socket) -> bool:
    """Whether nothing more can be sent."""
    import select

    with suppress(OSError, ValueError):
        return not select.select([], [sock], [], 0.2)[1]
    return False
