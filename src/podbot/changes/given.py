"""What callers give to the verbs of the library: one of a few words, or paths.

A word that is none must not fall through to what it resembles least, and one path must not be
taken for its letters. Refuses by name; knows nothing of what the words and paths mean.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from podbot.errors import ChangesError, Kind

_Word = TypeVar("_Word", bound=str)

Paths = str | os.PathLike[str] | Sequence[str]
"""Paths, folders and globs as they may be given: several, or one alone."""
OnConflict = Literal["stop", "skip", "overwrite"]
ON_CONFLICT: tuple[OnConflict, ...] = ("stop", "skip", "overwrite")


def one_of(what: str, value: object, words: Iterable[_Word]) -> _Word:
    """The one of these words that was given.

    Raises `ChangesError` (``invalid``) for any other, with the words there are.
    """
    known = tuple(words)
    found = next((word for word in known if isinstance(value, str) and word == value), None)
    if found is not None:
        return found
    near = None
    if isinstance(value, str):
        from podbot.nearest import nearest  # large, and only for an error

        near = nearest(value, map(str, known))
    raise ChangesError(
        f"{what}={_shown(value)} is not known" + (f"; did you mean {near!r}?" if near else ""),
        kind=Kind.INVALID,
        remedy=f"use one of: {', '.join(repr(str(word)) for word in known)}",
    )


def paths(what: str, given: object) -> tuple[str, ...]:
    """Paths, folders or globs as they were given: a list of them, or one alone.

    Raises `ChangesError` (``invalid``) for what is neither.
    """
    if isinstance(given, str | os.PathLike):
        return (_path(what, given),)
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise _no_paths(what, given)
    return tuple(_path(what, path) for path in given)


def numbers_or_pairs(what: str, given: object) -> None:
    """Refuse what are no pieces of a diff: each a number, or a number and that of an edit in it."""
    is_list = isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping)
    if not (is_list and all(_is_piece(piece) for piece in given)):  # type: ignore[attr-defined]  # it is a collection
        raise ChangesError(
            f"{what} are {_shown(given)}, not a list of the numbers of hunks",
            kind=Kind.INVALID,
            remedy="give the numbers of its hunks, from 0 on, such as [0, 2]",
        )


def _is_piece(piece: object) -> bool:
    several = piece if isinstance(piece, tuple) else (piece,)
    numbers = all(isinstance(each, int) and not isinstance(each, bool) for each in several)
    return numbers and len(several) in (1, 2)


def _path(what: str, path: object) -> str:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise _no_paths(what, path)
    return text


def _no_paths(what: str, given: object) -> ChangesError:
    return ChangesError(
        f"{what}={_shown(given)} is not a path, nor a list of paths",
        kind=Kind.INVALID,
        remedy=f"give paths as text, such as {what}=['src', 'README.md']",
    )


def _shown(value: object) -> str:
    return f"{value!r:.80}"
