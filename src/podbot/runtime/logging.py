"""Structured logs: an event's name with fields, on top of the standard `logging`.

    logger = get_logger(__name__, component="tools.podman")
    logger.info("container.started", name=name, seconds=0.4)

A logger carries what it was bound to, and knows values it must not tell. Records have two
attributes for handlers that want data, ``event`` and ``context``; their message says the same as
one line of ``key=value``. An exception given as ``error=…`` brings its traceback along. What comes
from inside a sandbox cannot fake lines or colours here: values are cut short and control
characters escaped. Nothing is printed unless the application sets up `logging`.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType

from podbot.errors import PodbotError
from podbot.runtime.given import expect_each

REDACTED = "[redacted]"
TEXT_LIMIT = 2000
"""Characters kept of one value."""
ITEM_LIMIT = 50
"""Items kept of one list or mapping."""
DEPTH_LIMIT = 4
SHORT_SECRET = 4
"""Below so many characters a secret is hidden where it is a whole value, not within others:
an environment value such as ``1`` would make every number unreadable."""

_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")  # printable ASCII without space, quote, "=" and backslash

# Without a handler of its own, `logging` would print warnings to stderr by itself.
logging.getLogger("podbot").addHandler(logging.NullHandler())


class StructuredLogger:
    """Logs events with fields. Made by `get_logger`; never changed, so threads may share it."""

    __slots__ = ("_context", "_logger", "_secrets")

    def __init__(
        self,
        logger: logging.Logger,
        context: Mapping[str, object] | None = None,
        secrets: Iterable[str] = (),
    ):
        self._logger = logger
        self._context: Mapping[str, object] = MappingProxyType(dict(context or {}))
        # The longest first: one secret may be part of another.
        self._secrets = tuple(sorted({s for s in _several(secrets) if s}, key=len, reverse=True))

    @property
    def name(self) -> str:
        """The name of the standard logger below."""
        return self._logger.name

    @property
    def context(self) -> Mapping[str, object]:
        """What every record carries."""
        return self._context

    def bind(self, **fields: object) -> StructuredLogger:
        """A logger whose records carry these fields too."""
        return StructuredLogger(self._logger, {**self._context, **fields}, self._secrets)

    def hiding(self, secrets: Iterable[str]) -> StructuredLogger:
        """A logger that never tells these values, wherever they turn up in a record."""
        secrets = (*self._secrets, *_several(secrets))
        return StructuredLogger(self._logger, self._context, secrets)

    def debug(self, event: str, /, **fields: object) -> None:
        """For whoever looks for a fault."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Something normal that is worth a line."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Something went wrong and was dealt with."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Something failed."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        given = {**self._context, **fields}
        error = given.get("error")
        context = {key: self._safe(value) for key, value in given.items()}
        event = self._text(event)
        line = " ".join([_shown(event), *(f"{key}={_shown(v)}" for key, v in context.items())])
        # Percent signs are none of ours: the message is whole as it is.
        record = self._logger.makeRecord(self._logger.name, level, "", 0, line, (), None)
        record.event = event
        record.context = context
        if isinstance(error, BaseException):
            # As text, so that a formatter does not make its own with the secrets in it.
            record.exc_text = self._hidden("".join(traceback.format_exception(error)).rstrip())
        self._logger.handle(record)

    def _safe(self, value: object) -> object:
        try:
            return self._plain(value, DEPTH_LIMIT)
        except Exception:  # a log must not fail because something cannot say what it is
            return f"<a {type(value).__qualname__} that cannot be shown>"

    def _plain(self, value: object, depth: int) -> object:
        """A value as numbers, text, lists and dicts, without secrets, and not too long."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value if self._hidden(repr(value)) == repr(value) else REDACTED
        if isinstance(value, str):
            return self._text(value)
        if depth > 0 and isinstance(value, Mapping):
            pairs = list(value.items())[:ITEM_LIMIT]
            return {self._text(str(key)): self._plain(item, depth - 1) for key, item in pairs}
        if depth > 0 and isinstance(value, Sequence | Set) and not isinstance(value, bytes):
            return [self._plain(item, depth - 1) for item in list(value)[:ITEM_LIMIT]]
        if isinstance(value, BaseException):
            return self._text(f"{type(value).__name__}: {value}")
        return self._text(repr(value))

    def _text(self, text: str) -> str:
        # Hidden first: a cut through the middle of a secret would leave half of it.
        text = self._hidden(text)
        return text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "…"

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            if text == secret:
                return REDACTED
            if len(secret) >= SHORT_SECRET:
                text = text.replace(secret, REDACTED)
        return text


def get_logger(name: str, *, secrets: Iterable[str] = (), **context: object) -> StructuredLogger:
    """A logger over ``logging.getLogger(name)``, bound to ``context`` (``component=…``)."""
    return StructuredLogger(logging.getLogger(name), context, secrets)


def _several(secrets: Iterable[str]) -> tuple[str, ...]:
    # One text would be taken for its letters, and the whole of it would be told.
    return expect_each(secrets, str, "the secrets of a logger", PodbotError)


def _shown(value: object) -> str:
    """A value in a line: bare if it is one plain word, else as JSON in ASCII."""
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else json.dumps(value)
