"""Every verb against a guest that answers anything: a result, or a `SandboxError`, never else."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.errors import GuestLostError, Kind, SandboxError
from podbot.sandbox import _tars, ops, shell_sessions
from podbot.sandbox.channel import Reply
from podbot.sandbox.limits import Limits
from podbot.sandbox.values import TransferResult

LIMITS = Limits()
COMMAND = ops.command(["true"], None, None)

VERBS: dict[str, Callable[[], ops.Op[object]]] = {
    "exec": lambda: ops.exec_(COMMAND, b"x", 1.0, LIMITS),
    "exec with much input": lambda: ops.exec_(COMMAND, b"x" * 2_000_000, None, LIMITS),
    "output": lambda: ops.output(1, "stdout", 100, 1.0),
    "feed": lambda: ops.feed(1, b"x" * 2_000_000, close=True),
    "wait": lambda: ops.wait(1, None),
    "signal": lambda: ops.send_signal(1, 15, group=False),
    "processes": ops.processes,
    "python": lambda: ops.python("1", None, LIMITS),
    "interrupt": ops.python_interrupt,
    "read": lambda: ops.read("file", 0, None, 5000),
    "read a piece": lambda: ops.read("file", 0, 5000, 1),
    "write": lambda: ops.write("file", b"x" * 2_000_000, "replace", None),
    "edit": lambda: ops.edit("file", "a", "b", False),
    "list": lambda: ops.list_(".", recursive=True, max_entries=3),
    "glob": lambda: ops.glob("*", ".", 3),
    "grep": lambda: ops.grep(ops.Search("x", max_matches=3)),
    "stat": lambda: ops.stat("file", follow=True),
    "exists": lambda: ops.exists("file"),
    "init": lambda: ops.init({}),
    "newest": lambda: ops.newest(".", 3, 3),
    "realpath": lambda: ops.realpath("file"),
    "connect": lambda: ops.connect(1, 0),
    "download": lambda: _tars.download_tar("file", io.BytesIO(), 5000),
    "upload": lambda: _tars.upload_tar(packed(), "folder", 5000),
    "shell": lambda: shell_sessions.run(
        shell_sessions.session(None, COMMAND, LIMITS), "true", 600.0
    ),
}
ENDLESS = ("read", "shell")
"""A file may be long, and come a byte at a time; a shell may say things for long."""


def packed() -> io.BytesIO:
    """A tar of a file, a folder and a link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for kind in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
            member = tarfile.TarInfo(f"name-{kind.decode()}")
            member.type, member.linkname = kind, "there"
            tar.addfile(member, io.BytesIO())
    stream.seek(0)
    return stream


FIELDS = (
    "stdout_size", "exit_code", "duration", "timed_out", "signal", "stdout_truncated", "handle",
    "process", "ended", "dropped", "sizes", "has_value",
    "has_error", "restarted", "truncated", "interrupted", "count", "info", "protocol", "python",
    "real", "total", "complete", "has_json",
)  # fmt: skip
ROW = (
    "process", "argv", "exit_code", "path", "kind", "size", "mode", "mtime_ns", "link_target",
)  # fmt: skip

plain = (
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.integers()
    | st.floats()
    | st.sampled_from(["file", "dir", "x", "a/../b", "\ud800"])
    | st.lists(st.sampled_from(["x", 1, None]), max_size=3)
)
rows = st.dictionaries(st.sampled_from(ROW), plain)
values = plain | rows
heads = st.dictionaries(st.sampled_from(FIELDS), values)
payloads = (
    st.binary(max_size=20)
    | st.lists(values, max_size=5).map(lambda found: json.dumps(found).encode())
    | st.integers(0, 6000).map(lambda size: b"x" * size)
)
replies = st.builds(Reply, heads, payloads)
refusals = st.builds(lambda kind: SandboxError("no", kind=kind), st.sampled_from(list(Kind)))


@pytest.mark.parametrize("verb", VERBS)
@settings(max_examples=60, deadline=None)
@given(answers=st.lists(replies | refusals, min_size=1, max_size=8))
def test_whatever_a_guest_answers_a_verb_ends_in_a_result_or_an_error(
    verb: str, answers: list[Reply | SandboxError]
) -> None:
    op = VERBS[verb]()
    try:
        next(op)
        for turn in range(200):
            answer = answers[turn % len(answers)]
            if isinstance(answer, SandboxError):
                op.throw(answer)
            else:
                op.send(answer)
    except (StopIteration, SandboxError):
        return
    finally:
        op.close()
    assert verb.startswith(ENDLESS)


def answered(op: ops.Op[object], *answers: Reply) -> object:
    """What a verb makes of these answers."""
    waiting: Iterator[Reply] = iter(answers)
    try:
        next(op)
        while True:
            op.send(next(waiting))
    except StopIteration as stop:
        return stop.value


LINK = {"path": "x", "kind": "link", "size": 1, "mode": 0o777, "mtime_ns": 1, "link_target": "y"}


@pytest.mark.parametrize(
    ("op", "reply"),
    [
        (
            ops.python("1", None, LIMITS),
            Reply({"sizes": [1, 0, 0, 0, 0]}, b"xx"),
        ),
        (ops.grep(ops.Search("x", max_matches=1)), Reply({}, b'[["a",1,"x"],["a",2,"x"]]')),
        (ops.grep(ops.Search("x")), Reply({}, b'[["a",1]]')),
        (ops.grep(ops.Search("x")), Reply({}, b'[["a","1","x"]]')),
        (ops.glob("*", ".", 9), Reply({}, b"[1]")),
        (ops.processes(), Reply({}, b'[{"process":1,"argv":"sh"}]')),
        (ops.stat("x", follow=True), Reply({"info": {"kind": "door"}}, b"")),
        (ops.stat("x", follow=False), Reply({"info": {**LINK, "path": "\ud800"}}, b"")),
        (ops.init({}), Reply({"protocol": 2, "python": "3"}, b"")),
        (ops.exec_(COMMAND, None, None, LIMITS), Reply({"stdout_size": 9}, b"short")),
        (ops.edit("x", "a", "b", False), Reply({"count": 0}, b"")),
    ],
)
def test_an_answer_that_cannot_be_is_a_protocol_error(op: ops.Op[object], reply: Reply) -> None:
    with pytest.raises(GuestLostError) as caught:
        answered(op, reply)
    assert caught.value.kind is Kind.PROTOCOL


@pytest.mark.parametrize("target", ["\ud800", "a\0b", None])
def test_a_link_that_leads_to_no_name_is_left_out_of_a_tar(target: str | None) -> None:
    stream = io.BytesIO()
    done = answered(
        _tars.download_tar("x", stream, 9), Reply({"info": {**LINK, "link_target": target}}, b"")
    )
    assert isinstance(done, TransferResult)
    assert done.skipped == (("x", "a link that leads to no name"),)
    assert stream.getvalue() == bytes(1024)
