"""The parser of command lines: argparse, which also says what a mistyped word may have meant.

Each parser answers for its own words: what one does not know is told with the usage of that verb,
not with that of the whole program.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

from podbot.nearest import nearest
from podbot.visible import visible

_UNKNOWN = re.compile(
    r"argument (?P<name>[^:]*): invalid choice: "
    r"""(['"])(?P<given>.*)\2 \(choose from (?P<known>.*)\)"""
)
_EXCLUDED = re.compile(r"argument (?P<one>\S+): not allowed with argument (?P<other>\S+)")
_FOR_HELP = ("help", "usage", "man", "?")
"""What people type to be helped."""
_HINTS = ("did you mean", "there are: ")
"""What a message holds that says by itself how to go on."""
_MISSING = "the following arguments are required: "


class Misread(SystemExit):
    """A command line that is not valid: the usage of the verb it is for, and what is wrong."""

    def __init__(self, code: int, prog: str, usage: str, message: str, remedy: str | None = None):
        super().__init__(code)
        self.usage, self.message = usage, message
        self.remedy = remedy or f"{prog} --help says what there is"
        self._prog = prog

    @property
    def as_text(self) -> str:
        """What a person reads."""
        text = f"{self.usage}{self._prog}: {self.message}"
        is_hinted = any(hint in self.message for hint in _HINTS)
        return text if is_hinted else f"{text}\n  remedy: {self.remedy}"


NARROW = 24
"""Columns that are too few to write an explanation in, beside what it is of."""
_COLUMNS = re.compile(r"(?P<left> +\S.*? {2,})(?P<right>\S.*)")


class Help(argparse.RawDescriptionHelpFormatter):
    """Help whose texts stay as they were written where they fit, and are broken where not."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(row for part in _parts(text) for row in _broken(part, width))


def _parts(text: str) -> Iterator[list[str]]:
    """Lines that belong together: those of a paragraph, or of an example with its explanation."""
    part: list[str] = []
    for line in text.split("\n"):
        is_more = bool(part and part[0].strip() and line.strip())
        if is_more and line.startswith(" "):
            columns = _COLUMNS.fullmatch(part[0])
            is_more = columns is not None and line.startswith(" " * len(columns["left"]))
        elif is_more:
            is_more = not part[0].startswith(" ")
        if not is_more and part:
            yield part
            part = []
        part.append(line)
    yield part


def _broken(part: list[str], width: int) -> list[str]:
    if all(len(line) <= width for line in part):
        return part
    columns = _COLUMNS.fullmatch(part[0])
    if not part[0].startswith(" "):
        return _wrapped(" ".join(part), width)
    if columns is None:
        return part  # a command is not broken
    left, words = columns["left"], " ".join([columns["right"], *map(str.strip, part[1:])])
    room = width - len(left)
    if room >= NARROW:
        first, *others = _wrapped(words, room)
        return [left + first, *(" " * len(left) + line for line in others)]
    below = " " * (len(left) - len(left.lstrip()) + 4)
    return [left.rstrip(), *(below + line for line in _wrapped(words, width - len(below)))]


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap  # only for help that does not fit

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """One whose errors name the nearest word there is. Its verbs' parsers are of this kind too."""

    wrong = 2
    """How the program ends for a wrong command line."""

    called_elsewhere: Mapping[str, str] = {}
    """Options as other programs call them, and what they are here."""

    _given: Sequence[str] = ()

    def __init__(self, *args: Any, **options: Any):  # argparse's own, with a better formatter
        super().__init__(*args, **{"formatter_class": Help, **options})

    def parse_known_args(  # type: ignore[override]  # the one form that subparsers are called in
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; a word that is left over is a mistake here, not one of the parser above."""
        self._given = args
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._left_over(unknown[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """End with what is wrong, for `main` to tell."""
        unknown, excluded = _UNKNOWN.fullmatch(message), _EXCLUDED.fullmatch(message)
        remedy = None
        if excluded is not None:
            message = "{other} and {one} exclude each other".format(**excluded.groupdict())
            remedy = "give one of them"
        elif unknown is not None:
            message = _said(**unknown.groupdict())
        elif message.startswith(_MISSING):
            # Of a mistyped option and what is missing for that, the option is what helps.
            message = next(map(self._left_over, self._mistyped()), message)
        raise Misread(self.wrong, self.prog, self.format_usage(), visible(message), remedy)

    def _mistyped(self) -> Iterator[str]:
        """The options before any other word that are not known."""
        for word in self._given:
            if word == "--" or not word.startswith("-"):
                return
            name = word.partition("=")[0]
            if not any(known.startswith(name) for known in self._option_string_actions):
                yield word

    def _left_over(self, word: str) -> str:
        if word.startswith("-"):
            name = word.partition("=")[0]
            near = self.called_elsewhere.get(name) or nearest(name, self._option_string_actions)
            return f"there is no option {word}" + (f"; did you mean {near}?" if near else "")
        return f"it takes no further word: {word}"


class VerbParser(Parser):
    """Takes options anywhere among the paths; argparse alone takes them only before or after."""

    def parse_known_args(  # type: ignore[override]  # the one form that subparsers are called in
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse with the options moved to the front."""
        valued = [
            name for name, action in self._option_string_actions.items() if action.nargs is None
        ]
        return super().parse_known_args(options_first(args, valued), namespace)


def options_first(words: Sequence[str], valued: Sequence[str]) -> list[str]:
    """The same words in an order that argparse understands; after ``--`` nothing is an option.

    The value of a ``valued`` option is the word after it.
    """
    options: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word.startswith("-") and word != "-":
            options.append(word)
            if word in valued:
                options += islice(rest, 1)
        else:
            others.append(word)
    return options + others


def _said(name: str, given: str, known: str) -> str:
    words = re.findall(r"[\w-]+", known)
    near = None if given in _FOR_HELP else nearest(given, words)
    hint = f"did you mean `{near}`? there" if near else "there"
    if given in _FOR_HELP:
        hint = "--help says what there is; there"
    place = f"{name}: " if name.startswith("-") else ""
    return f"{place}there is no `{given}`; {hint} are: {', '.join(words)}"
