"""The parser of command lines: argparse, which also says what a mistyped word may have meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import islice
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


VALUED = ("--allow-flagged", "--yes-flagged", "--on-conflict", "--target", "--older-than")
"""Options whose value is the next word."""


class VerbParser(Parser):
    """Takes options anywhere among the paths; argparse alone takes them only before or after."""

    def parse_known_args(  # type: ignore[override]  # the one form that subparsers are called in
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse with the options moved to the front."""
        return super().parse_known_args(options_first(args), namespace)


def options_first(words: Sequence[str]) -> list[str]:
    """The same words in an order that argparse understands; after ``--`` nothing is an option."""
    options: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word.startswith("-") and word != "-":
            options.append(word)
            if word in VALUED:
                options += islice(rest, 1)
        else:
            others.append(word)
    return options + others


def _said(name: str, given: str, known: str) -> str:
    words = re.findall(r"[\w-]+", known)
    near = nearest(given, words)
    hint = f"did you mean `{near}`? there" if near else "there"
    place = f"{name}: " if name.startswith("-") else ""
    return f"{place}there is no `{given}`; {hint} are: {', '.join(words)}"
