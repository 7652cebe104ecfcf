"""A proxy's life: when it starts, what a change of its rules changes, and what is left of it."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import suppress

import pytest
from small_web import (
    OK,
    Server,
    answering,
    echo,
    listening,
    named,
    proxied,
    read_all,
    read_head,
    wait_until,
)

from podbot.egress import HOST_NAME, EgressError, Proxy, Record, Rules, Verdict
from podbot.errors import Kind


def test_rules_that_are_changed_count_for_the_next_connection() -> None:
    with Server(answering(OK)) as server, proxied(Rules()) as through:
        url = f"http://{named(server)}/"
        assert through.get(url).startswith(b"HTTP/1.1 403 ")
        through.proxy.allow(named(server))
        assert through.get(url).startswith(b"HTTP/1.1 200 ")
        through.proxy.rules = through.proxy.rules.deny(named(server))
        assert through.get(url).startswith(b"HTTP/1.1 403 ")


def test_what_is_open_goes_on_when_rules_change() -> None:
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        sock, _ = through.tunnel(HOST_NAME, server.port)
        with sock:
            through.proxy.rules = Rules()
            sock.sendall(b"still")
            assert sock.recv(10) == b"still"


def test_closing_ends_every_connection_and_tells_its_record() -> None:
    records: list[Record] = []
    listener = listening()
    port = listener.getsockname()[1]
    with Server(echo) as server:
        proxy = Proxy(Rules.of(named(server)), records.append, environment={})
        proxy.serve(listener)
        with socket.create_connection(("127.0.0.1", port), 60) as sock:
            place = named(server).encode()
            sock.sendall(b"CONNECT " + place + b" HTTP/1.1\r\nHost: " + place + b"\r\n\r\n")
            read_head(sock)
            proxy.close()
            assert read_all(sock) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 60)

    (record,) = records
    assert (record.verdict, record.reason) == (Verdict.ALLOWED, "the proxy was closed")
    assert not [each for each in threading.enumerate() if each.name == "podbot-egress"]
    proxy.close()  # once more does nothing
    with pytest.raises(EgressError) as caught, listening() as another:
        proxy.serve(another)
    assert caught.value.kind is Kind.CLOSED


def test_a_connection_that_came_at_the_last_moment_is_closed_too() -> None:
    told, go_on = threading.Event(), threading.Event()

    def hold_up(_: Record) -> None:
        told.set()
        go_on.wait(60)

    listener = listening()
    place = listener.getsockname()
    before = len(os.listdir("/proc/self/fd")) - 1  # less the listener, which the proxy closes
    proxy = Proxy(Rules(), hold_up, environment={})
    proxy.serve(listener)
    with socket.create_connection(place, 60) as first:
        first.sendall(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
        assert told.wait(60)  # its thread looks at nothing now
    ending = threading.Thread(target=proxy.close)
    with socket.create_connection(place, 60) as last:
        ending.start()
        wait_until(lambda: proxy._closed)
        go_on.set()  # and then sees both at once: somebody came, and it is to end
        ending.join(60)
        with suppress(ConnectionError):
            assert last.recv(1) == b""
    gc.disable()  # whatever was forgotten is not to be found by it
    try:
        # Something of an earlier test's may have gone meanwhile.
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


def test_a_proxy_that_nobody_used_or_that_nobody_came_to_closes_too() -> None:
    Proxy().close()
    listener = listening()
    with Proxy() as proxy:
        proxy.serve(listener)
    assert listener.fileno() == -1


def test_a_proxy_that_is_made_anew_goes_on_where_a_copy_of_its_listener_was_kept() -> None:
    with Server(answering(OK)) as server, listening() as kept:
        port = kept.getsockname()[1]
        for _ in range(2):
            with Proxy(Rules.of(named(server)), environment={}) as proxy:
                proxy.serve(kept.dup())
                with socket.create_connection(("127.0.0.1", port), 60) as sock:
                    place = named(server).encode()
                    sock.sendall(
                        b"GET http://" + place + b"/ HTTP/1.1\r\nHost: " + place + b"\r\n"
                        b"Connection: close\r\n\r\n"
                    )
                    assert read_all(sock).endswith(b"hello")


def test_several_listeners_and_single_connections_are_served_alike() -> None:
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        more = listening()
        port = more.getsockname()[1]
        through.proxy.serve(more)
        ours, its = socket.socketpair()
        through.proxy.adopt(its)
        ours.settimeout(60)
        place = named(server).encode()
        with ours, socket.create_connection(("127.0.0.1", port), 60) as theirs:
            for sock in (ours, theirs):
                sock.sendall(b"CONNECT " + place + b" HTTP/1.1\r\nHost: " + place + b"\r\n\r\n")
                assert read_head(sock).startswith(b"HTTP/1.1 200 ")
                sock.sendall(b"x")
                assert sock.recv(1) == b"x"


def test_a_connection_that_is_given_first_starts_the_proxy() -> None:
    ours, its = socket.socketpair()
    ours.settimeout(60)
    with ours, Proxy() as proxy:
        proxy.adopt(its)
        ours.sendall(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
        assert read_all(ours).startswith(b"HTTP/1.1 403 ")


def test_sockets_that_cannot_be_served_are_refused() -> None:
    with Proxy() as proxy:
        for family, kind in (
            (socket.AF_INET, socket.SOCK_DGRAM),
            (socket.AF_INET, socket.SOCK_STREAM),
        ):
            with socket.socket(family, kind) as sock:
                with pytest.raises(EgressError) as caught:
                    proxy.serve(sock)
                assert caught.value.kind is Kind.BAD_LISTENER
        with socket.socket(type=socket.SOCK_DGRAM) as sock, pytest.raises(EgressError):
            proxy.adopt(sock)


def test_whoever_listens_to_records_cannot_stop_the_proxy_by_failing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: Record) -> None:
        raise ValueError("no")

    listener = listening()
    port = listener.getsockname()[1]
    with Proxy(Rules(), broken) as proxy:
        proxy.serve(listener)
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), 60) as sock:
                sock.sendall(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
                assert read_all(sock).startswith(b"HTTP/1.1 403 ")

    assert "a record could not be told" in caplog.text


def test_a_resolver_that_breaks_lets_nothing_through() -> None:
    def broken(_: str) -> list[str]:
        raise ValueError("no")

    with proxied(Rules.of("a.example"), resolver=broken) as through:
        assert through.get("http://a.example/").startswith(b"HTTP/1.1 502 ")


def test_a_listener_that_somebody_shuts_down_is_let_go_of() -> None:
    with proxied(Rules()) as through:
        more = listening()
        copy = more.dup()
        through.proxy.serve(more)
        through.get("http://a.example/")
        copy.shutdown(socket.SHUT_RDWR)
        copy.close()
        wait_until(lambda: more.fileno() == -1)
        assert through.get("http://a.example/").startswith(b"HTTP/1.1 403 ")


def sockets_of(process: int | str) -> set[str]:
    """Those that a process holds, by inode."""
    folder = f"/proc/{process}/fd"
    with suppress(FileNotFoundError):  # the folder's own, by then
        return {
            link
            for name in os.listdir(folder)
            if os.path.lexists(f"{folder}/{name}")
            and (link := os.readlink(f"{folder}/{name}")).startswith("socket:")
        }
    return set()


def test_a_fork_holds_nothing_of_the_proxy_and_cannot_use_it() -> None:
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        sock, _ = through.tunnel(HOST_NAME, server.port)
        wait_until(lambda: server.came == 1)
        its = {f"socket:[{os.stat(line.sock.fileno()).st_ino}]" for line in through.proxy._lines}
        assert len(its) == 2
        reading, writing = os.pipe()
        waiting, going = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
            child = os.fork()
        if child == 0:
            with suppress(BaseException):
                try:
                    through.proxy.allow("a.example")
                    with listening() as another:
                        through.proxy.serve(another)
                except EgressError as error:
                    os.write(writing, error.kind.encode())
                through.proxy.close()
                os.read(waiting, 1)
            os._exit(0)
        assert os.read(reading, 100).decode() == Kind.FOREIGN_PROCESS
        held = sockets_of(child)
        os.write(going, b"x")
        os.waitpid(child, 0)
        for number in (reading, writing, waiting, going):
            os.close(number)
        assert not held & its
        assert f"socket:[{os.stat(sock.fileno()).st_ino}]" in held  # the test's own is
        with sock:
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"  # and the parent's goes on


HEAVY = "asyncio h11 ssl http.client urllib.request podbot.egress._service"


def test_neither_rules_nor_a_proxy_that_waits_load_what_takes_long() -> None:
    program = f"""
import socket, sys
from podbot.egress import Proxy, Rules
with Proxy(Rules.of("pypi.org", presets=("npm",))) as proxy:
    proxy.serve(socket.create_server(("127.0.0.1", 0)))
    print(*set({HEAVY!r}.split()) & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == []


def test_importing_the_package_loads_none_of_it() -> None:
    program = (
        "import sys, podbot.egress; print(*(m for m in sys.modules if m.startswith('podbot.e')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["podbot.egress"]


def test_an_interpreter_that_leaves_does_not_wait_for_a_proxy() -> None:
    program = """
import socket
from podbot.egress import Proxy, Rules
listener = socket.create_server(("127.0.0.1", 0))
proxy = Proxy(Rules())
proxy.serve(listener.dup())
with socket.create_connection(listener.getsockname()) as sock:
    sock.sendall(b"GET http://a.example/ HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n")
    print(sock.recv(12).decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert (done.stdout, done.stderr) == ("HTTP/1.1 403\n", "")


def test_a_record_is_data() -> None:
    with Server(answering(OK)) as server, proxied(Rules.of(named(server))) as through:
        through.get(f"http://{named(server)}/a")
        data = through.record().as_data()

    assert (data["host"], data["verdict"], data["method"]) == (HOST_NAME, "allowed", "GET")
    assert (data["path"], data["status"], data["rule"]) == ("/a", 200, named(server))
    assert data["bytes_down"] == len(OK) and data["would_allow"] is None
