"""The parser of command lines: argparse, which also says what a mistyped word may have meant."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from podbot.nearest import nearest

_UNKNOWN = re.compile(
    r"argument (?P<name>[^:]*): invalid choice: "
    r"""(['"])(?P<given>.*)\2 \(choose from (?P<known>.*)\)"""
)


class Parser(argparse.ArgumentParser):
    """One whose errors name the nearest word there is. Its verbs' parsers are of this kind too."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with 2."""
        unknown = _UNKNOWN.fullmatch(message)
        super().error(message if unknown is None else _said(**unknown.groupdict()))


def _said(name: str, given: str, known: str) -> str:
    words = re.findall(r"[\w-]+", known)
    near = nearest(given, words)
    hint = f"did you mean `{near}`? there" if near else "there"
    place = f"{name}: " if name.startswith("-") else ""
    return f"{place}there is no `{given}`; {hint} are: {', '.join(words)}"
