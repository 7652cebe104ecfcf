"""A channel against guests of every kind: it answers, or raises, and never hangs or lies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.errors import FileError, GuestLostError, Kind, SandboxError
from podbot.sandbox import wire
from podbot.sandbox.async_channel import AsyncSocketChannel
from podbot.sandbox.channel import Call, Mux, Reply, SocketChannel
from podbot.sandbox.wire import HEADER
from podbot.visible import visible

SOON = 120.0
"""Nothing here takes this long unless it hangs."""


class Channel(Protocol):
    def call(self, call: Call) -> Reply: ...

    def close(self) -> None: ...


class LoopChannel:
    """An `AsyncSocketChannel` in a loop of its own, so that a test can be written once."""

    def __init__(self, sock: socket.socket, died: Callable[[], SandboxError | None]):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.inner = self._do(self._make(sock, died))

    async def _make(
        self, sock: socket.socket, died: Callable[[], SandboxError | None]
    ) -> AsyncSocketChannel:
        return AsyncSocketChannel(sock, died)

    def _do(self, work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SOON)

    def call(self, call: Call) -> Reply:
        return self._do(self.inner.call(call))  # type: ignore[no-any-return]

    async def _close(self) -> None:
        self.inner.close()

    def close(self) -> None:
        self._do(self._close())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SOON)
        self._loop.close()


class Guest:
    """The far end of a channel, played by a script in a thread."""

    def __init__(self, sock: socket.socket):
        self.sock = sock

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.sock.recv(min(65536, size - len(data)))
            if not part:
                raise EOFError
            data += part
        return data

    def request(self) -> tuple[dict[str, object], bytes]:
        head_size, payload_size = HEADER.unpack(self.exactly(8))
        frame = wire.Decoder()
        frame.feed(HEADER.pack(head_size, 0) + self.exactly(head_size))
        found = frame.take()
        assert found is not None
        return found.head, self.exactly(payload_size)  # type: ignore[return-value]

    def reply(self, head: dict[str, object], payload: bytes = b"") -> None:
        self.sock.sendall(wire.encode(head, len(payload)) + payload)

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def hang_up(self) -> None:
        self.sock.close()


Script = Callable[[Guest], None]


@contextmanager
def play(
    driver: str, script: Script, died: Callable[[], SandboxError | None] = lambda: None
) -> Iterator[Channel]:
    """A channel whose guest follows a script; the script's own failure fails the test."""
    ours, theirs = socket.socketpair()
    failures: list[str] = []

    def run() -> None:
        try:
            script(Guest(theirs))
        except (EOFError, OSError):
            pass  # the host hung up, as it may
        except BaseException:
            failures.append(traceback.format_exc())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    channel: SocketChannel | LoopChannel
    channel = SocketChannel(ours, died) if driver == "sync" else LoopChannel(ours, died)
    try:
        yield channel
    finally:
        channel.close()
        if isinstance(channel, LoopChannel):
            channel.stop()
        with suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)
        thread.join(SOON)
        theirs.close()
    assert not thread.is_alive()
    assert not failures, failures[0]


both = pytest.mark.parametrize("driver", ["sync", "async"])


def echo(guest: Guest) -> None:
    while True:
        head, payload = guest.request()
        guest.reply({"id": head["id"], "op": head.get("op")}, payload)


def kind_of_call(channel: Channel, **options: object) -> Kind:
    with pytest.raises(SandboxError) as caught:
        channel.call(Call("x", **options))  # type: ignore[arg-type]
    return caught.value.kind


@both
def test_a_reply_brings_its_fields_and_its_payload(driver: str) -> None:
    with play(driver, echo) as channel:
        reply = channel.call(Call("ping", {"a": 1}, b"body"))
    assert reply.fields.text("op") == "ping"
    assert reply.payload == b"body"


@both
def test_a_reply_in_parts_is_put_together(driver: str) -> None:
    parts = [b"a" * 10, b"b", b"c" * 200_000, b"d", b"e" * wire.MAX_PAYLOAD, b""]

    def script(guest: Guest) -> None:
        head, _ = guest.request()
        for part in parts[:-1]:
            guest.reply({"id": head["id"], "more": True}, part)
        guest.reply({"id": head["id"], "last": True}, parts[-1])

    with play(driver, script) as channel:
        reply = channel.call(Call("x"))
    assert reply.payload == b"".join(parts)
    assert reply.fields.flag("last")


@both
def test_sixteen_threads_each_get_their_own_reply_in_whatever_order(driver: str) -> None:
    def script(guest: Guest) -> None:
        shuffle = random.Random(7)
        while True:
            waiting = [guest.request() for _ in range(16)]
            shuffle.shuffle(waiting)
            for head, payload in waiting:
                guest.reply({"id": head["id"], "n": head["n"]}, payload)

    def ask(number: int) -> None:
        for _ in range(20):
            ready.wait(SOON)
            reply = channel.call(Call("x", {"n": number}, bytes([number]) * number * 3000))
            assert reply.fields.number("n") == number
            assert reply.payload == bytes([number]) * number * 3000

    ready = threading.Barrier(16)
    with play(driver, script) as channel, ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(ask, number) for number in range(16)]:
            future.result(SOON)


def nested(depth: int) -> bytes:
    body = b'{"id":1,"x":' + b"[" * depth + b"]" * depth + b"}"
    return HEADER.pack(len(body), 0) + body


def frame(head: dict[str, object], payload: bytes = b"") -> bytes:
    return wire.encode(head, len(payload)) + payload


HOSTILE = {
    "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": b"\0" * 64,
    "giant head": HEADER.pack(2**31, 0),
    "giant payload": HEADER.pack(2, 2**32 - 1) + b"{}",
    "deep": nested(100_000),
    "not an object": HEADER.pack(2, 0) + b"[]",
    "an id from the future": frame({"id": 77}),
    "a negative id": frame({"id": -1}),
    "no id": frame({}),
    "an id that is true": frame({"id": True}),
    "an id that is text": frame({"id": "1"}),
    "an id that is 1.0": frame({"id": 1.0}),
    "an empty part": frame({"id": 1, "more": True}),
    "more than was asked for": frame({"id": 1}, b"x" * 2000),
    "an error that is no object": frame({"id": 1, "error": "x"}),
    "an error without words": frame({"id": 1, "error": {"kind": "io", "message": [[]]}}),
}


@both
@pytest.mark.parametrize("what", HOSTILE)
def test_a_guest_that_breaks_the_protocol_is_given_up(driver: str, what: str) -> None:
    def script(guest: Guest) -> None:
        guest.request()
        guest.raw(HOSTILE[what])
        guest.exactly(1)  # and stays on the line

    with play(driver, script) as channel:
        assert kind_of_call(channel, max_reply=1000) is Kind.PROTOCOL
        if not what.startswith("an error"):
            assert kind_of_call(channel) is Kind.PROTOCOL  # it stays given up, at once


@both
def test_endless_parts_are_cut_at_the_limit_of_the_reply(driver: str) -> None:
    def script(guest: Guest) -> None:
        guest.request()
        while True:
            guest.reply({"id": 1, "more": True}, b"x" * 100)

    with play(driver, script) as channel:
        assert kind_of_call(channel, max_reply=1_000_000) is Kind.PROTOCOL


def test_a_million_tiny_parts_cost_no_more_than_their_bytes() -> None:
    mux = Mux()
    pending, _ = mux.begin(Call("x"))
    for _ in range(10_000):
        mux.dispatch(wire.Frame({"id": 1, "more": True}, b"x"))
    assert len(pending.parts) < 10
    mux.dispatch(wire.Frame({"id": 1}, b"y"))
    assert pending.result().payload == b"x" * 10_000 + b"y"


@both
def test_a_guest_that_hangs_up_at_any_byte_is_lost(driver: str) -> None:
    answer = frame({"id": 1}, b"payload")

    def script_for(cut: int) -> Script:
        def script(guest: Guest) -> None:
            guest.request()
            guest.raw(answer[:cut])
            guest.hang_up()

        return script

    for cut in range(len(answer)):
        with play(driver, script_for(cut)) as channel:
            assert kind_of_call(channel) is Kind.GUEST_LOST


@both
def test_who_knows_better_why_the_guest_died_is_believed(driver: str) -> None:
    reason = GuestLostError("over its disk limit", kind=Kind.DISK_LIMIT)
    with play(driver, lambda guest: guest.hang_up(), lambda: reason) as channel:
        assert kind_of_call(channel) is Kind.DISK_LIMIT
        assert kind_of_call(channel) is Kind.DISK_LIMIT


@both
def test_a_guest_that_could_not_be_set_up_says_why(driver: str) -> None:
    def script(guest: Guest) -> None:
        error = {"kind": "userns_denied", "message": "no", "remedy": "sysctl \x1b[31m"}
        guest.reply({"id": 0, "error": error})
        guest.exactly(1)

    with play(driver, script) as channel, pytest.raises(GuestLostError) as caught:
        channel.call(Call("init"))
    assert caught.value.kind is Kind.USERNS_DENIED
    assert caught.value.remedy == r"sysctl \x1b[31m"


@both
def test_a_silent_guest_costs_the_patience_of_the_call_and_no_more(driver: str) -> None:
    def script(guest: Guest) -> None:
        guest.request()  # and says nothing
        head, payload = guest.request()
        guest.reply({"id": 1})  # much too late, and for nobody
        guest.reply({"id": head["id"]}, payload)

    with play(driver, script) as channel:
        assert kind_of_call(channel, patience=0.2) is Kind.GUEST_UNRESPONSIVE
        assert channel.call(Call("x", {}, b"again")).payload == b"again"


@both
def test_an_abandoned_request_is_cancelled_by_its_number(driver: str) -> None:
    seen: list[dict[str, object]] = []

    def script(guest: Guest) -> None:
        head, _ = guest.request()
        note, _ = guest.request()
        seen.extend((head, note))
        guest.reply({"id": head["id"]})
        echo(guest)

    with play(driver, script) as channel:
        assert kind_of_call(channel, patience=0.2, cancel=True) is Kind.GUEST_UNRESPONSIVE
        assert channel.call(Call("x", {}, b"fine")).payload == b"fine"
    assert seen[1] == {"id": 0, "op": "cancel", "target": seen[0]["id"]}


@both
def test_a_guest_that_does_not_read_costs_the_patience_of_the_call(driver: str) -> None:
    done = threading.Event()

    def script(guest: Guest) -> None:
        done.wait(SOON)

    big = b"x" * wire.MAX_PAYLOAD
    with play(driver, script) as channel:
        try:
            assert kind_of_call(channel, payload=big, patience=0.2) is Kind.GUEST_UNRESPONSIVE
            assert kind_of_call(channel, payload=big, patience=0.2) is Kind.GUEST_UNRESPONSIVE
        finally:
            done.set()


@both
def test_closing_frees_who_waits_to_send_and_who_waits_for_a_reply(driver: str) -> None:
    done = threading.Event()

    def script(guest: Guest) -> None:
        guest.request()
        done.wait(SOON)

    with play(driver, script) as channel, ThreadPoolExecutor(4) as pool:
        try:
            waits = pool.submit(kind_of_call, channel, patience=None)
            time.sleep(0.05)
            big = b"x" * wire.MAX_PAYLOAD
            sends = [
                pool.submit(kind_of_call, channel, payload=big, patience=None) for _ in range(3)
            ]
            time.sleep(0.1)
            channel.close()
            for future in (waits, *sends):
                assert future.result(SOON) is Kind.CLOSED
            assert kind_of_call(channel) is Kind.CLOSED
        finally:
            done.set()


@both
def test_one_stuck_sender_does_not_use_up_the_patience_of_others(driver: str) -> None:
    done = threading.Event()

    def script(guest: Guest) -> None:
        done.wait(SOON)

    with play(driver, script) as channel, ThreadPoolExecutor(1) as pool:
        try:
            big = b"x" * wire.MAX_PAYLOAD
            stuck = pool.submit(kind_of_call, channel, payload=big, patience=None)
            time.sleep(0.1)
            assert kind_of_call(channel, patience=0.2) is Kind.GUEST_UNRESPONSIVE
            channel.close()
            assert stuck.result(SOON) is Kind.CLOSED
        finally:
            done.set()


@both
def test_a_large_request_gets_through_to_a_guest_that_floods_us_first(driver: str) -> None:
    flood = frame({"id": 1, "more": True}, b"f" * 60_000)
    given_up = threading.Event()

    def script(guest: Guest) -> None:
        guest.request()
        given_up.wait(SOON)
        for _ in range(150):  # 9 MB for a request that was given up, before it reads again
            guest.raw(flood)
        guest.reply({"id": 1})
        echo(guest)

    with play(driver, script) as channel:
        assert kind_of_call(channel, patience=0.1) is Kind.GUEST_UNRESPONSIVE
        given_up.set()
        big = b"x" * wire.MAX_PAYLOAD
        assert channel.call(Call("x", {}, big)).payload == big


@both
def test_large_requests_and_replies_of_many_threads_do_not_lock_each_other(driver: str) -> None:
    def ask(number: int) -> None:
        payload = bytes([number]) * wire.MAX_PAYLOAD
        for _ in range(5):
            assert channel.call(Call("x", {}, payload)).payload == payload

    with play(driver, echo) as channel, ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(ask, number) for number in range(8)]:
            future.result(SOON)


@both
def test_a_refusal_becomes_the_exception_of_its_kind(driver: str) -> None:
    answers = [
        ({"kind": "not_found", "message": "x: no such file"}, FileError, Kind.NOT_FOUND),
        ({"kind": "command_not_found", "message": "y"}, SandboxError, Kind.COMMAND_NOT_FOUND),
        ({"kind": "no such kind", "message": "z"}, SandboxError, Kind.IO),
        ({"kind": {"a": []}, "message": "z"}, SandboxError, Kind.IO),
    ]

    def script(guest: Guest) -> None:
        for error, _, _ in answers:
            head, _ = guest.request()
            guest.reply({"id": head["id"], "error": error})

    with play(driver, script) as channel:
        for _, cls, kind in answers:
            with pytest.raises(cls) as caught:
                channel.call(Call("x"))
            assert caught.value.kind is kind


def test_words_from_inside_are_shown_without_their_control_characters() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b[2J\u202egpj.exe\x00") == r"\x1b[2J\u202egpj.exe\x00"


@both
def test_arguments_that_cannot_be_sent_are_refused_and_harm_nothing(driver: str) -> None:
    with play(driver, echo) as channel:
        huge = {"argv": ["x" * wire.MAX_REQUEST_HEAD]}
        assert kind_of_call(channel, args=huge) is Kind.TOO_LARGE
        assert kind_of_call(channel, args={"x": float("nan")}) is Kind.TOO_LARGE
        assert channel.call(Call("x", {}, b"ok")).payload == b"ok"


@both
def test_each_caller_of_a_lost_guest_gets_an_exception_of_its_own(driver: str) -> None:
    with play(driver, lambda guest: guest.hang_up()) as channel:
        caught: list[BaseException] = []
        for _ in range(3):
            try:
                channel.call(Call("x"))
            except SandboxError as error:
                caught.append(error)
    assert len({id(error) for error in caught}) == 3


@both
def test_a_fork_of_the_owner_is_told_that_the_channel_is_not_its_own(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with play(driver, echo) as channel:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            assert kind_of_call(channel) is Kind.FOREIGN_PROCESS
        assert channel.call(Call("x", {}, b"ok")).payload == b"ok"


frames = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            frame,
            st.fixed_dictionaries(
                {"id": st.integers(-1, 4) | st.booleans() | st.none()},
                optional={
                    "more": st.booleans() | st.integers(),
                    "error": st.none()
                    | st.text(max_size=3)
                    | st.dictionaries(st.sampled_from(["kind", "message"]), st.text(max_size=5)),
                },
            ),
            st.binary(max_size=20),
        ),
    ),
    max_size=6,
)


@both
@settings(max_examples=60, deadline=None)
@given(answers=frames)
def test_whatever_a_guest_answers_a_call_ends(driver: str, answers: list[bytes]) -> None:
    def script(guest: Guest) -> None:
        guest.request()
        for answer in answers:
            guest.raw(answer)
        guest.hang_up()

    with play(driver, script) as channel:
        for _ in range(3):
            with suppress(SandboxError):
                channel.call(Call("x", patience=SOON, max_reply=50))


# Interrupts


@contextmanager
def interrupted() -> Iterator[None]:
    """SIGALRM raises KeyboardInterrupt in the main thread, as Ctrl-C would."""

    def strike(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_cancels_the_request_and_the_channel_goes_on() -> None:
    seen: list[object] = []

    def script(guest: Guest) -> None:
        head, _ = guest.request()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        note, _ = guest.request()
        seen.append(note)
        guest.reply({"id": head["id"]})
        echo(guest)

    with play("sync", script) as channel:
        with pytest.raises(KeyboardInterrupt), interrupted():
            channel.call(Call("sleep", cancel=True, patience=None))
        assert channel.call(Call("x", {}, b"fine")).payload == b"fine"
    assert seen == [{"id": 0, "op": "cancel", "target": 1}]


def test_ctrl_c_at_any_moment_garbles_nothing() -> None:
    # In a process of its own, which nothing measures: a tracer does not survive this.
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, __file__],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing garbled\n", "")


def strike_at_random() -> None:
    """Interrupt calls at any moment; each time the channel goes on, or says that it is over."""

    def script(guest: Guest) -> None:
        while True:
            head, payload = guest.request()
            if head["op"] == "cancel":
                continue
            guest.reply({"id": head["id"]}, payload * 100)

    moments = random.Random(1)
    lost = 0
    for _ in range(40):
        with play("sync", script) as channel:
            for number in range(3):
                with suppress(KeyboardInterrupt), interrupted():
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-4, 0.01))
                    while True:
                        channel.call(Call("x", {}, bytes([number]) * 9000))
                try:
                    reply = channel.call(Call("x", {}, b"check"))
                except GuestLostError as error:
                    # Given up in so many words, because it struck inside the parser.
                    assert error.kind is Kind.GUEST_LOST
                    lost += 1
                    break
                assert reply.payload == b"check" * 100
    assert lost < 40
    print("nothing garbled")


def test_a_cancelled_task_cancels_its_request() -> None:
    seen: list[object] = []

    def script(guest: Guest) -> None:
        head, _ = guest.request()
        note, _ = guest.request()
        seen.append(note)
        guest.reply({"id": head["id"]})
        echo(guest)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=lambda: _quietly(script, theirs), daemon=True)
        thread.start()
        channel = AsyncSocketChannel(ours, lambda: None)
        task = asyncio.create_task(channel.call(Call("sleep", cancel=True, patience=None)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await channel.call(Call("x", {}, b"fine"))).payload == b"fine"
        channel.close()
        await asyncio.to_thread(thread.join, SOON)
        theirs.close()

    asyncio.run(main())
    assert seen == [{"id": 0, "op": "cancel", "target": 1}]


def _quietly(script: Script, sock: socket.socket) -> None:
    with suppress(EOFError, OSError):
        script(Guest(sock))


def test_a_cancelled_task_leaves_no_half_request_behind() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        channel = AsyncSocketChannel(ours, lambda: None)
        big = b"x" * wire.MAX_PAYLOAD
        tasks = [asyncio.create_task(channel.call(Call("x", {}, big))) for _ in range(4)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        thread = threading.Thread(target=lambda: _quietly(echo, theirs), daemon=True)
        thread.start()
        assert (await channel.call(Call("y", {}, b"whole"))).payload == b"whole"
        channel.close()
        await asyncio.to_thread(thread.join, SOON)
        theirs.close()

    asyncio.run(main())


def test_a_channel_released_from_another_thread_leaves_its_loop_clean() -> None:
    async def main() -> None:
        for _ in range(3):  # the same descriptor number comes back each time
            ours, theirs = socket.socketpair()
            channel = AsyncSocketChannel(ours, lambda: None)
            await asyncio.to_thread(channel.release)
            await asyncio.sleep(0.01)
            assert ours.fileno() == -1
            assert theirs.recv(1) == b""
            theirs.close()

    asyncio.run(main())


def test_a_channel_whose_loop_is_gone_can_still_be_released() -> None:
    ours, theirs = socket.socketpair()

    async def main() -> AsyncSocketChannel:
        return AsyncSocketChannel(ours, lambda: None)

    channel = asyncio.run(main())
    channel.release()
    assert ours.fileno() == -1
    theirs.close()


if __name__ == "__main__":
    strike_at_random()
