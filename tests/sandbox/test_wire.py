"""The wire survives whatever a guest writes, and both ends read the same frames."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.errors import GuestLostError, Kind
from podbot.sandbox import wire
from podbot.sandbox.wire import HEADER, Decoder, Fields, Frame

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
heads = st.dictionaries(st.text(max_size=10), json_values, max_size=4)
payloads = st.binary(max_size=300) | st.integers(0, 200_000).map(lambda size: b"x" * size)


def receive(decoder: Decoder, data: bytes, sizes: list[int]) -> list[Frame]:
    """Drive a decoder as a channel does, cutting the stream into pieces of these sizes."""
    found: list[Frame] = []
    at, turn = 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        turn += 1
        view = decoder.want()
        if view is not None:
            count = min(size, len(view), len(data) - at)
            view[:count] = data[at : at + count]
            decoder.filled(count)
        else:
            count = min(size, wire.CHUNK)
            decoder.feed(data[at : at + count])
        at += count
        while (frame := decoder.take()) is not None:
            found.append(frame)
    return found


def encoded(head: dict[str, object], payload: bytes) -> bytes:
    return wire.encode(head, len(payload)) + payload


# A large piece now and then, or a long stream in single bytes would take for ever.
splits = st.lists(st.integers(1, 100_000), max_size=5).map(lambda sizes: [*sizes, 5000])


@settings(deadline=None)
@given(st.lists(st.tuples(heads, payloads), max_size=4), splits)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    frames: list[tuple[dict[str, object], bytes]], sizes: list[int]
) -> None:
    stream = b"".join(encoded(head, payload) for head, payload in frames)

    found = receive(Decoder(), stream, sizes)

    assert [(frame.head, bytes(frame.payload)) for frame in found] == frames


@settings(deadline=None)
@given(st.binary(max_size=4096), splits)
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes, sizes: list[int]) -> None:
    try:
        receive(Decoder(), data, sizes)
    except GuestLostError as error:
        assert error.kind is Kind.PROTOCOL


@settings(deadline=None)
@given(st.lists(st.binary(max_size=64), max_size=4), splits)
def test_well_framed_garbage_gives_frames_or_a_protocol_error(
    bodies: list[bytes], sizes: list[int]
) -> None:
    stream = b"".join(HEADER.pack(len(body), 3) + body + b"abc" for body in bodies)
    try:
        receive(Decoder(), stream, sizes)
    except GuestLostError as error:
        assert error.kind is Kind.PROTOCOL


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 40_000,
        b"{" + b'"a":1,' * 3 + b'"b":' + b"9" * 10_000 + b"}",
        b"[]",
        b"null",
        b"1",
        b'"text"',
        b"",
        b"\xff\xfe",
        b"\x00\x00\x00{",
        b'{"a"',
        b"{}{}",
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_head_that_is_no_small_object_is_refused(body: bytes) -> None:
    with pytest.raises(GuestLostError) as caught:
        receive(Decoder(), HEADER.pack(len(body), 0) + body, [65536])
    assert caught.value.kind is Kind.PROTOCOL


@pytest.mark.parametrize(
    ("head_size", "payload_size"),
    [(wire.MAX_HEAD + 1, 0), (0, wire.MAX_PAYLOAD + 1), (2**32 - 1, 2**32 - 1)],
)
def test_a_promise_of_too_much_is_refused_before_any_of_it_came(
    head_size: int, payload_size: int
) -> None:
    with pytest.raises(GuestLostError) as caught:
        receive(Decoder(), HEADER.pack(head_size, payload_size), [8])
    assert caught.value.kind is Kind.PROTOCOL


def test_a_guest_that_never_ends_a_frame_costs_little_memory() -> None:
    head = b'{"id":1}'
    unfinished = HEADER.pack(len(head), wire.MAX_PAYLOAD) + head + b"x" * (wire.MAX_PAYLOAD - 1)
    tracemalloc.start()
    try:
        decoder = Decoder()
        receive(decoder, unfinished, [4096])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * wire.MAX_PAYLOAD


def test_what_the_host_cannot_send_is_refused_while_encoding() -> None:
    with pytest.raises(ValueError, match="too large"):
        wire.encode({"x": "y" * wire.MAX_REQUEST_HEAD})
    with pytest.raises(ValueError, match="too large"):
        wire.encode({}, wire.MAX_PAYLOAD + 1)
    with pytest.raises(ValueError, match="not JSON"):
        wire.encode({"x": float("nan")})


def test_a_name_that_is_not_utf8_survives_the_trip() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    (frame,) = receive(Decoder(), encoded({"path": name}, b""), [3])
    assert frame.head["path"] == name


def test_reporting_bytes_nobody_asked_for_is_a_bug_of_the_driver() -> None:
    with pytest.raises(RuntimeError):
        Decoder().filled(1)


@settings(deadline=None)
@given(json_values)
def test_a_field_of_the_wrong_type_is_a_protocol_error(value: object) -> None:
    fields = Fields(json.loads(json.dumps({"x": value})))
    for read in (fields.text, fields.number, fields.seconds, fields.flag):
        try:
            read("x")
        except GuestLostError as error:
            assert error.kind is Kind.PROTOCOL


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ({"x": True}, lambda f: f.number("x")),
        ({"x": -1}, lambda f: f.number("x")),
        ({"x": 300}, lambda f: f.number("x", high=255)),
        ({"x": 1.5}, lambda f: f.number("x")),
        ({"x": float("inf")}, lambda f: f.seconds("x")),
        ({"x": float("nan")}, lambda f: f.seconds("x")),
        ({"x": True}, lambda f: f.seconds("x")),
        ({"x": 1}, lambda f: f.flag("x")),
        ({}, lambda f: f.text("x")),
    ],
)
def test_a_field_out_of_bounds_is_a_protocol_error(values: object, read: object) -> None:
    with pytest.raises(GuestLostError):
        read(Fields(values))  # type: ignore[operator, arg-type]


def test_fields_that_may_be_absent_are_none() -> None:
    fields = Fields({"present": 3, "word": "w"})
    assert fields.optional_number("absent") is None
    assert fields.optional_number("present") == 3
    assert fields.optional_text("absent") is None
    assert fields.optional_text("word") == "w"
    assert fields.flag("absent") is False


@pytest.mark.parametrize("payload", [b"", b"{}", b"[" * 100_000, b"[1,", b"\xff"])
def test_rows_that_are_no_list_are_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(GuestLostError):
        wire.rows(payload)
