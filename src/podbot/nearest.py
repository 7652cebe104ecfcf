"""The word that was perhaps meant by one that is not known: for errors that help to mend it."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of ``words`` that is most like ``word``; None if none is like it."""
    import difflib  # large, and needed only for an error

    return next(iter(difflib.get_close_matches(word, words, n=1)), None)
