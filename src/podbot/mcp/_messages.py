"""A line of MCP's stdio transport as a message: strictly, or as the error that answers it.

A client is not trusted, and what a model wrote is in its messages. A line has a limit, and a name
that comes twice in one object is refused, as nobody can say which of the two was meant. A refusal
names the request wherever that can be told: without it a client waits for ever. Nothing here reads
or writes a descriptor, and no tool is known.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable

from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from podbot.frozen import dataclass
from podbot.prompt.json_text import quoted

MESSAGE_BYTES = 16 * 1024 * 1024
"""The longest line a client may send."""
EDGE_BYTES = 1024
"""What is kept of either end of a line that is longer: enough to tell whose request it was."""
_ID_DIGITS = 20
_CALL = "tools/call"


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that is longer than allowed: how it begins and how it ends."""

    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class Written:
    """The arguments of a call as JSON text, for the tool to refuse: a name comes twice in them."""

    arguments: str


def parsed(line: bytes | TooLong) -> SessionMessage | ErrorData:
    """The message in a line, or why there is none."""
    if isinstance(line, TooLong):
        return ErrorData(
            code=INVALID_REQUEST, message=f"a message may have {MESSAGE_BYTES} bytes at most"
        )
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        return _refusal(line, error)
    repeated: list[str] = []
    members = _members(line, repeated)
    if isinstance(message, JSONRPCNotification) and "id" in members:
        # It waits for an answer, and a notification would get none.
        return ErrorData(code=INVALID_REQUEST, message="an id must be a whole number or a string")
    if not repeated:
        return SessionMessage(message)
    params = members.get("params")
    if isinstance(message, JSONRPCRequest) and message.method == _CALL and isinstance(params, dict):
        arguments = params.pop("arguments", None)
        if _first_repeated(members) is None:
            # What a model did wrong is the tool's to answer, in words for a model.
            written = Written(json.dumps(arguments))
            return SessionMessage(message, ServerMessageMetadata(request_context=written))
    return ErrorData(
        code=INVALID_REQUEST, message=f"the name {quoted(repeated[0])} comes twice in one object"
    )


def _refusal(line: bytes, error: ValidationError) -> ErrorData:
    found = error.errors(include_input=False)
    broken = [each["msg"] for each in found if each["type"] == "json_invalid"]
    if not broken:
        return ErrorData(code=INVALID_REQUEST, message="a line that is not JSON-RPC message")
    if "recursion limit" in broken[0]:
        text = "the message is nested too deep"
    elif request_id(line) is None:
        text = "a line that is not JSON"
    else:
        text = (
            "the message is not JSON, or it holds half of a character (a lone surrogate) or a "
            "number of too many digits; send it without"
        )
    return ErrorData(code=PARSE_ERROR, message=text)


def request_id(line: bytes | TooLong) -> str | int | None:
    """Whose request a message was that could not be taken; None if that cannot be told."""
    repeated: list[str] = []
    members = {} if isinstance(line, TooLong) else _members(line, repeated)
    members = members or _edges(line)
    if "method" not in members or "id" in repeated:
        return None
    found = members.get("id")
    if isinstance(found, str):
        return found if found.isascii() else None
    return found if type(found) is int else None


# The whole of a line


class _Repeated(dict[str, object]):
    """An object in which a name comes twice. Written as JSON it still does."""

    def __init__(self, pairs: list[tuple[str, object]]):
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> list[tuple[str, object]]:  # type: ignore[override]  # for json alone
        return self._pairs


def _members(line: bytes, repeated: list[str]) -> dict[str, object]:
    """What is in a message, read by a parser that takes more than it should.

    Every name that comes twice in one object is put into ``repeated``.
    """

    def made(pairs: list[tuple[str, object]]) -> dict[str, object]:
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        times = Counter(name for name, _ in pairs)
        repeated.extend(name for name, number in times.items() if number > 1)
        return _Repeated(pairs)

    try:
        found: object = json.loads(line, parse_int=_whole, object_pairs_hook=made)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _ID_DIGITS else math.nan


def _first_repeated(value: object) -> _Repeated | None:
    """An object at any depth in which a name comes twice."""
    if isinstance(value, _Repeated):
        return value
    inside: Iterable[object] = ()
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
    return next((found for each in inside if (found := _first_repeated(each)) is not None), None)


# The ends of a line

_STRING = r'"(?:[^"\\]|\\.)*"'
_PLAIN = rf"{_STRING}|-?[0-9]+|true|false|null"
_OPEN = re.compile(r"[ \t\r]*\{")
_MEMBER = re.compile(rf"[ \t\r]*({_STRING})[ \t\r]*:[ \t\r]*({_PLAIN})[ \t\r]*,")
_PARAMS = re.compile(r'[ \t\r]*"params"[ \t\r]*:')
# A quote that follows a comma opens a string, whatever came before: one that closed a string would
# leave the name outside of any. So this is a member of the outermost object.
_LAST = re.compile(
    r',[ \t\r]*"id"[ \t\r]*:[ \t\r]*([0-9]+|"[^"\\]*")[ \t\r]*'
    r'(?:,[ \t\r]*"jsonrpc"[ \t\r]*:[ \t\r]*"2\.0"[ \t\r]*)?\}[ \t\r]*\Z'
)


def _edges(line: bytes | TooLong) -> dict[str, object]:
    """The members of a message that lie before and behind what is large or deep in it.

    Some clients write the id first, others last.
    """
    if isinstance(line, bytes):
        line = TooLong(line[:EDGE_BYTES], line[-EDGE_BYTES:])
    head, tail = (edge.decode("utf-8", "replace") for edge in (line.head, line.tail))
    pairs: list[tuple[str, object]] = []
    at = _OPEN.match(head)
    place = at.end() if at else len(head)
    while member := _MEMBER.match(head, place):
        pairs.append((_value(member[1]), _value(member[2])))  # type: ignore[arg-type]  # a string
        place = member.end()
    if _PARAMS.match(head, place):
        pairs.append(("method", None))  # only a request has them
    names = [name for name, _ in pairs]
    last = _LAST.search(tail)
    if last is not None:
        pairs.append(("id", _value(last[1])))
    members = dict(pairs)
    if (last is not None and "id" in names) or names.count("id") > 1:
        del members["id"]
    return members


def _value(text: str) -> object:
    try:
        found: object = json.loads(text, parse_int=_whole)
    except ValueError:
        return None
    return found
