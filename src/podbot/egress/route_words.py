"""Routes as people write them: ``anthropic``, ``anthropic=env:KEY``, ``openai@https://…=file:PATH``.

A word names the place of a key and never holds one. Somebody may write the key itself all the same:
so no error repeats a word.
"""

from __future__ import annotations

import os
import re
import shlex

from podbot.egress.broker import BUILT_IN, Route, built_in, usual_variable
from podbot.egress.credentials import FromCommand, FromFile, FromVariable
from podbot.errors import EgressError, Kind

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.egress.credentials import Source

_WORD = re.compile(
    r"(?P<kind>[a-z0-9-]+)(?:@(?P<base>https?://[^=\s]+))?(?:=(?P<place>[a-z]+):(?P<rest>.+))?",
    re.DOTALL,
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def route_of(word: str) -> Route:
    """The route that ``KIND[@URL][=SOURCE]`` means.

    The kind is a well-known interface; the URL is where it is, if that is not the usual place. The
    source is ``env:NAME``, ``file:PATH`` or ``command:WORDS…``; without one it is the usual
    variable. Raises `EgressError`.
    """
    match = _WORD.fullmatch(word)
    if match is None or match["kind"] not in BUILT_IN:
        raise _bad()
    kind = match["kind"]
    if match["place"] is None:
        return built_in(kind, FromVariable(usual_variable(kind)), base=match["base"])
    return built_in(kind, _source(match["place"], match["rest"]), base=match["base"])


def _source(place: str, rest: str) -> Source:
    if place == "env" and _VARIABLE.fullmatch(rest):
        return FromVariable(rest)
    if place == "file":
        return FromFile(os.path.abspath(os.path.expanduser(rest)))
    if place == "command":
        try:
            words = tuple(shlex.split(rest))
        except ValueError:
            words = ()
        if words:
            return FromCommand(words)
    raise _bad()


def _bad() -> EgressError:
    return EgressError(
        "that is no route (what was written is not repeated here: it may hold a key)",
        kind=Kind.BAD_RULE,
        remedy=f"write KIND or KIND=SOURCE, KIND@URL=SOURCE; KIND is {', '.join(BUILT_IN)}, "
        "SOURCE env:NAME, file:PATH or command:WORDS",
    )
