"""Through the egress proxy: what a request, many bytes and many connections cost.

Client, proxy and server are three processes on the loopback, as they are when a sandbox is one.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.measure import Side, Spread, race
from bench.rows import Row, Target
from bench.setting import Setting
from podbot.egress import HOST_NAME, Proxy, Rules

MIB = 1024 * 1024
SIZE = 2048 * MIB
QUICK_SIZE = 256 * MIB
PIECE = 256 * 1024
MANY = 500
# What a tunnel holds back in each direction, and what the allocator keeps of it.
FLAT = 8.0


def request(setting: Setting) -> list[Row]:
    """The time that a request through the proxy takes longer than a direct one."""
    with _server(_echo) as port, _proxy(port) as proxy:

        def direct() -> None:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                _ask(sock)

        def tunnelled() -> None:
            with _tunnel(proxy, port) as sock:
                _ask(sock)

        sides = {
            "direct": Side(direct),
            "tunnel": Side(tunnelled),
            "true": Side(lambda: subprocess.run(["true"], check=True)),
        }
        spread = race(sides, setting.pace(200))
    added = Spread(
        spread["tunnel"].median - spread["direct"].median,
        spread["tunnel"].p90 - spread["direct"].p90,
    )
    return [
        Row("egress", "a request through a tunnel, added", added, "ms",
            spread["true"], "bare subprocess.run true", Target(0.5)),
        Row("egress", "a request, direct", spread["direct"]),
    ]  # fmt: skip


def throughput(setting: Setting) -> list[Row]:
    """The rate of many bytes through a tunnel, and the proxy's memory meanwhile."""
    size = QUICK_SIZE if setting.quick else SIZE
    growth: list[float] = []
    with _server(lambda sock: _send(sock, size)) as port, _proxy(port) as proxy:

        def direct() -> None:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                _receive(sock, size)

        def tunnelled() -> None:
            before = _forget_peak(proxy.process)
            with _tunnel(proxy, port) as sock:
                _receive(sock, size)
            growth.append((_memory(proxy.process, "VmHWM") - before) / MIB)

        spread = race(
            {"tunnel": Side(tunnelled), "direct": Side(direct)}, setting.pace(5, 0.05, warm_up=1)
        )
    seconds_each = {name: Spread(s.median / 1e3, s.p90 / 1e3) for name, s in spread.items()}
    rates = {name: s.rate(size / MIB) for name, s in seconds_each.items()}
    return [
        Row("egress-bytes", f"{size // MIB} MiB through a tunnel", rates["tunnel"], "MiB/s",
            rates["direct"], "direct", Target(0.4, at_least=True)),
        Row("egress-bytes", "memory of the proxy meanwhile, growth",
            Spread.of(growth[1:] or growth), "MiB", target=Target(FLAT)),
    ]  # fmt: skip


def plain_body(setting: Setting) -> list[Row]:
    """The rate of a body of plain HTTP, and the proxy's memory meanwhile."""
    size = QUICK_SIZE if setting.quick else SIZE
    growth: list[float] = []

    def serve(sock: socket.socket) -> None:
        sock.recv(PIECE)
        sock.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        _send(sock, size)

    with _server(serve) as port, _proxy(port) as proxy:
        place = f"{HOST_NAME}:{port}"
        asking = f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()

        def get(address: tuple[str, int]) -> None:
            with socket.create_connection(address) as sock:
                sock.sendall(asking)
                _head(sock)
                _receive(sock, size)

        def proxied() -> None:
            before = _forget_peak(proxy.process)
            get(("127.0.0.1", proxy.port))
            growth.append((_memory(proxy.process, "VmHWM") - before) / MIB)

        sides = {"plain": Side(proxied), "direct": Side(lambda: get(("127.0.0.1", port)))}
        spread = race(sides, setting.pace(5, 0.05, warm_up=1))
    seconds_each = {name: Spread(s.median / 1e3, s.p90 / 1e3) for name, s in spread.items()}
    rates = {name: s.rate(size / MIB) for name, s in seconds_each.items()}
    return [
        Row("egress-body", f"a body of {size // MIB} MiB, plain HTTP", rates["plain"], "MiB/s",
            rates["direct"], "direct"),
        Row("egress-body", "memory of the proxy meanwhile, growth",
            Spread.of(growth[1:] or growth), "MiB", target=Target(FLAT)),
    ]  # fmt: skip


def many(setting: Setting) -> list[Row]:
    """The time for 500 tunnels that are open at once, each asked once."""
    _raise_limit()
    took: list[float] = []
    with _server(_echo) as port, _proxy(port) as proxy:
        for _ in range(2 if setting.quick else 5):
            begun = time.perf_counter()
            with ExitStack() as stack:
                socks = [stack.enter_context(_tunnel(proxy, port)) for _ in range(MANY)]
                for sock in socks:
                    _ask(sock)
                took.append((time.perf_counter() - begun) * 1e3 / MANY)
        memory = _memory(proxy.process, "VmRSS") / MIB
    return [
        Row("egress-many", f"each of {MANY} tunnels at once: opened and asked", Spread.of(took)),
        Row("egress-many", "memory of the proxy after them", Spread(memory, memory), "MiB"),
    ]


class _Proxy:
    def __init__(self, port: int, process: int):
        self.port, self.process = port, process


@contextmanager
def _proxy(allowed: int) -> Iterator[_Proxy]:
    """A proxy in a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=MANY)

    def serve() -> None:
        proxy = Proxy(Rules.of(f"{HOST_NAME}:{allowed}"), environment={})
        proxy.serve(listener)
        threading.Event().wait()

    with _forked(serve) as process:
        port = listener.getsockname()[1]
        listener.close()
        yield _Proxy(port, process)


@contextmanager
def _server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=MANY)

    def one(sock: socket.socket) -> None:
        with sock:
            serve(sock)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=one, args=(sock,), daemon=True).start()

    with _forked(accept):
        yield listener.getsockname()[1]
        listener.close()


@contextmanager
def _forked(work: Callable[[], None]) -> Iterator[int]:
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield process
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)


def _tunnel(proxy: _Proxy, port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", proxy.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    place = f"{HOST_NAME}:{port}"
    sock.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    assert b" 200 " in _head(sock)
    return sock


def _head(sock: socket.socket) -> bytes:
    """Up to the empty line: the peeking keeps what comes after."""
    while (end := (seen := sock.recv(65536, socket.MSG_PEEK)).find(b"\r\n\r\n")) < 0:
        assert seen
    return sock.recv(end + 4)


def _echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


def _ask(sock: socket.socket) -> None:
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"


def _send(sock: socket.socket, size: int) -> None:
    piece = bytes(PIECE)
    for _ in range(size // PIECE):
        sock.sendall(piece)


def _receive(sock: socket.socket, size: int) -> None:
    room, got = bytearray(PIECE), 0
    while got < size:
        part = sock.recv_into(room)
        assert part
        got += part


def _raise_limit() -> None:
    """Two descriptors for each tunnel are more than many a shell permits at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _forget_peak(process: int) -> int:
    """Begin the high-water mark of a process's memory anew; gives the memory now."""
    Path(f"/proc/{process}/clear_refs").write_text("5")
    return _memory(process, "VmRSS")


def _memory(process: int, field: str) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.M)
    assert found is not None
    return int(found[1]) * 1024
