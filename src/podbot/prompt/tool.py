"""`Tool`: something a model may call, with typed parameters and a typed result.

    Tool[ReadParams, ReadResult](name="read_file", description="Read a file.", handler=read)

The parameter type is a dataclass (or None) and is read once, when the tool is made. A tool knows
how to parse arguments and how to describe itself; which session a call belongs to, and what becomes
of a failure, is the prompt's business (`_dispatch`).
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Never, Protocol, TypeAlias, TypeVar, cast

from podbot.errors import PromptError
from podbot.prompt._arguments import parsed, parser_of
from podbot.prompt._schema import schema_of, strict_schema_of
from podbot.prompt._shapes import Record, record_of
from podbot.prompt.json_text import quoted
from podbot.prompt.result import Json, ToolResult
from podbot.runtime.given import expect_callable

if TYPE_CHECKING:
    from podbot.prompt.context import ToolContext

P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

NAME = re.compile(r"[a-z0-9_-]{1,64}")
DESCRIPTION_LENGTH = 200


class Handler(Protocol[P_contra, R_co]):
    """What serves a call. It may raise: dispatch makes a failing result of that."""

    def __call__(self, params: P_contra, *, context: ToolContext) -> ToolResult[R_co]:
        """Do what the parameters ask for."""
        ...


class _Unsaid:
    """The parameter type was not given in brackets: the handler's annotation says it."""


class Tool(Generic[P_contra, R_co]):
    """A tool: its name, its description, and the handler that serves it.

    The name is 1 to 64 of ``a-z 0-9 _ -``, the description 1 to 200 printable ASCII characters.
    The parameter type is the one in brackets, else that of the handler's first parameter.
    """

    __slots__ = ("_record", "_texts", "description", "handler", "name", "params_type")

    _said: type | None = _Unsaid

    def __init__(self, *, name: str, description: str, handler: Handler[P_contra, R_co]):
        _check_name(name)
        self.name = name
        self.description = checked_description(description, f"the tool {name}")
        expect_callable(handler, f"the handler of the tool {name}", PromptError)
        self.handler = handler
        said = type(self)._said
        self.params_type: type | None = _annotated(name, handler) if said is _Unsaid else said
        self._record: Record = record_of(self.params_type)
        self._texts: Mapping[str, str] = {}
        parser_of(self.params_type)  # made now, so that the first call does not wait for it

    # Hidden from type checkers, who know what brackets mean.
    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments: object) -> object:
            match arguments:
                case (None | type() as said, _) if cls is Tool and said is not Any:
                    return _saying(said)
            return super().__class_getitem__(arguments)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    @property
    def parameters(self) -> Mapping[str, str]:
        """Each parameter's name with its description."""
        return {
            field.name: self._texts.get(field.name, field.description)
            for field in self._record.fields
        }

    def parse(self, arguments: str | Mapping[str, object] | None) -> object:
        """The parameters in these arguments; raises `ToolValidationError` if they do not fit."""
        return parsed(self.params_type, self.name, arguments)

    def run(self, params: object, context: ToolContext) -> ToolResult[R_co]:
        """Have the handler serve parameters that `parse` gave. It may raise anything."""
        return self.handler(cast(P_contra, params), context=context)

    def json_schema(self) -> dict[str, Json]:
        """The JSON Schema of the parameters."""
        return schema_of(self._record, self._texts)

    def strict_json_schema(self) -> dict[str, Json]:
        """The same for providers that hold a model to it: nothing optional, no open objects.

        Arguments that fit it are accepted: null where there is a default, tables as lists.
        """
        return strict_schema_of(self._record, self._texts)

    def described(self, description: str, parameters: Mapping[str, str]) -> Tool[P_contra, R_co]:
        """The same tool with other texts. Parameters that are not named keep theirs."""
        made = object.__new__(type(self))
        made.name, made.handler = self.name, self.handler
        made.params_type, made._record = self.params_type, self._record
        made.description = checked_description(description, f"the tool {self.name}")
        made._texts = {**self._texts, **parameters}
        return made


AnyTool: TypeAlias = Tool[Never, object]
"""A tool whose types one does not need to know, for lists of them."""


@functools.lru_cache(maxsize=1024)
def _saying(params_type: type | None) -> type:
    """`Tool` with its parameter type in brackets."""
    return type("Tool", (Tool,), {"__slots__": (), "_said": params_type})


def checked_description(text: object, whose: str) -> str:
    """The description, if models may be shown it."""
    if not isinstance(text, str) or not 1 <= len(text) <= DESCRIPTION_LENGTH:
        reason = f"1 to {DESCRIPTION_LENGTH} characters are allowed"
    elif not (text.isascii() and text.isprintable() and text.strip()):
        reason = "only printable ASCII characters are allowed"
    else:
        return text
    raise PromptError(
        f"the description of {whose} does not fit: {reason}",
        remedy="say in one plain sentence what the tool does",
    )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise PromptError(
            f"{quoted(str(name))} cannot be the name of a tool",
            remedy="use 1 to 64 of a-z, 0-9, _ and -",
        )


def _annotated(name: str, handler: object) -> type | None:
    """The parameter type that the handler's annotation names."""
    function = getattr(handler, "__func__", handler)
    annotation = getattr(function, "__annotations__", {}).get("params", _Unsaid)
    if isinstance(annotation, str):
        module = sys.modules.get(getattr(function, "__module__", ""))
        annotation = _resolved(annotation, vars(module) if module else {})
    if annotation is None or (isinstance(annotation, type) and annotation is not _Unsaid):
        return annotation
    raise PromptError(
        f"nothing says which parameters the tool {name} takes",
        remedy="write Tool[Params, Result](...) with a dataclass, or annotate the handler's "
        "parameter `params` with one",
    )


def _resolved(annotation: str, names: Mapping[str, object]) -> object:
    """What a dotted name or None means there. Anything else is left to brackets."""
    if annotation == "None":
        return None
    first, *rest = annotation.split(".")
    value = names.get(first, _Unsaid)
    for part in rest:
        value = getattr(value, part, _Unsaid)
    return value
