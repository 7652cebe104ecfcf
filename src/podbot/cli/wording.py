"""How things look in a terminal: safe names, sizes, times, colours and tables.

Whatever comes from inside a sandbox goes through `name` or `message` before a person sees it. This
module prints nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import unicodedata
from collections.abc import Sequence
from typing import Literal, TextIO

from podbot.changes.diffs.text import shown_line, shown_name
from podbot.changes.late import expression
from podbot.frozen import dataclass

Style = Literal["added", "removed", "hunk", "title", "warning", "danger", "faint"]

_CODES: dict[Style, str] = {
    "added": "32",
    "removed": "31",
    "hunk": "36",
    "title": "1",
    "warning": "33",
    "danger": "1;31",
    "faint": "2",
}

UNKNOWN = "?"
GAP = "  "
NARROWEST = 8
"""What a column that gives way keeps at least."""


@dataclass(frozen=True, slots=True)
class Display:
    """What a stream can show. ``width`` is None where nothing has to fit: in pipes and files."""

    colour: bool = False
    width: int | None = None

    def paint(self, text: str, style: Style | None) -> str:
        """The text in a colour, if this stream has any."""
        if not self.colour or style is None or not text:
            return text
        return f"\x1b[{_CODES[style]}m{text}{_PLAIN}"


def display_of(stream: TextIO) -> Display:
    """Colours and a width for terminals (``NO_COLOR`` is obeyed), neither for anything else."""
    if not is_terminal(stream):
        return Display()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Display(not plain, _width(stream))


def _width(stream: TextIO) -> int:
    """How wide a terminal is; ``COLUMNS`` has the say, as everywhere."""
    with contextlib.suppress(ValueError, OSError):
        if not os.environ.get("COLUMNS"):
            return os.get_terminal_size(stream.fileno()).columns or 80
    import shutil  # much to load, and of no use to a pipe

    return shutil.get_terminal_size().columns


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def never_fail(stream: TextIO) -> None:
    """Let letters that the stream's encoding lacks be spelled out instead of raising."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def name(text: str) -> str:
    """A name from inside on one line, with everything spelled out that would not be seen."""
    return shown_name(text)


def text(sentence: str) -> str:
    """A sentence on one line; names in it that were spelled out before stay as they are."""
    return shown_line(sentence)


def message(lines: str) -> str:
    """A text of several lines that may quote names from inside."""
    return "\n".join(text(line) for line in lines.split("\n"))


def words(command: Sequence[str]) -> str:
    """A command as one would type it."""
    import shlex

    return text(shlex.join(command))


def called(word: str) -> str:
    """What a run is called, as one would type it."""
    return words([word])


def size(count: int) -> str:
    """Bytes in four digits at most: ``612 B``, ``1.2 KiB``."""
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1000 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}" if amount < 100 else f"{amount:.0f} {unit}"


def duration(seconds: float) -> str:
    """A length of time in its largest unit: ``41 s``, ``3 min``."""
    if seconds - seconds != 0:  # infinite, or no number
        return UNKNOWN
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def moment(seconds: float) -> str:
    """A point in time on the clock of this machine."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):  # no clock shows it
        return UNKNOWN


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: ``1 change``, ``2 changes``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def listed(items: Sequence[str], most: int) -> list[str]:
    """The first few of many lines, and how many more there are."""
    if len(items) <= most:
        return list(items)
    return [*items[: most - 1], f"… and {len(items) - most + 1} more"]


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(char) for char in text)


def _cells_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clipped(text: str, width: int, *, keep_end: bool = False) -> str:
    """A text cut to a width, at its end or at its beginning, with a sign that it was."""
    if cells(text) <= width:
        return text
    kept, taken = [], 1  # one column for the sign
    for char in reversed(text) if keep_end else text:
        taken += _cells_of(char)
        if taken > width:
            break
        kept.append(char)
    return "…" + "".join(reversed(kept)) if keep_end else "".join(kept) + "…"


_PIECES = expression(r"\x1b\[[0-9;]*m|.", re.DOTALL)
_PLAIN = "\x1b[0m"
_CODE = expression(r"\x1b\[[0-9;]*m")
_COMMAND = expression(r"`?\bpodbot(?: (?:'[^']*'|[^\s`;,()'\x1b])+)+`?")
_BLANK = "\0"
"""Stands for a blank where a row must not end: nothing that is shown holds it."""


def wrapped(line: str, width: int | None, hang: int | None = None) -> list[str]:
    """A line, painted or not, in rows that fit: broken at blanks, or anywhere in a long word.

    What follows the first row is set in by ``hang`` columns, else by two more than the line is. A
    command to type stays on one row if it fits on one, and an arrow with what it leads to.
    """
    if width is None or cells(_CODE.sub("", line)) <= width:
        return [line]
    indent = len(line) - len(line.lstrip(" "))
    hang = min(indent + 2 if hang is None else hang, width // 2)
    room = width - hang
    line = _COMMAND.sub(lambda found: _whole(found[0], room), line)
    line = line.replace("→ ", f"→{_BLANK}")
    rows: list[str] = []
    row, used, code = "", 0, ""
    for piece in _PIECES.findall(line):
        if len(piece) > 1:
            row, code = row + piece, "" if piece == _PLAIN else piece
            continue
        taken = _cells_of(piece)
        if used + taken > width and len(row) > indent:
            is_blank = piece == " "
            cut = len(row) if is_blank else row.rfind(" ", indent) + 1 or len(row)
            if hang + cells(_CODE.sub("", row[cut:])) + taken > width:
                cut = len(row)  # a word that has no room on a row of its own
            rest = row[cut:]
            # Each row is painted by itself: a pager may begin with any of them.
            rows.append(row[:cut].rstrip(" ").replace(_BLANK, " ") + (_PLAIN if code else ""))
            row = " " * hang + code + _CODE.sub("", rest)
            indent, used = hang + len(code), cells(_CODE.sub("", row))
            if is_blank:
                continue
        row, used = row + piece, used + taken
    return [*rows, row.replace(_BLANK, " ")]


def _whole(command: str, room: int) -> str:
    """A command with blanks that do not break, if it has room on a row."""
    return command.replace(" ", _BLANK) if cells(command) <= room else command


def padded(text: str, width: int) -> str:
    """A text filled up with blanks to a width."""
    return text + " " * max(0, width - cells(text))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. In a terminal those that give way are cut until the lines fit."""

    title: str
    gives_way: bool = False
    keeps_end: bool = False
    is_typed: bool = False
    """It is what a person types to go on: of those that give way it is the last."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], display: Display) -> list[str]:
    """A line of titles and the rows, aligned."""
    titles = [column.title for column in columns]
    widths = [max(map(cells, texts)) for texts in zip(titles, *rows, strict=True)]
    if display.width is not None:
        _narrow(widths, columns, display.width)
    lines = [_row(texts, columns, widths) for texts in (titles, *rows)]
    if display.width is not None:  # nothing is left that could give way
        lines = [clipped(line, display.width) for line in lines]
    return [display.paint(lines[0], "title"), *lines[1:]]


def _narrow(widths: list[int], columns: Sequence[Column], room: int) -> None:
    """Take from the widest columns that give way, until all fit or nothing can be taken."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - room
    giving = [number for number, column in enumerate(columns) if column.gives_way]
    typed = [number for number in giving if columns[number].is_typed]
    for some in ([number for number in giving if number not in typed], typed):
        while over > 0:
            widest = max(some, key=lambda number: widths[number], default=None)
            if widest is None or widths[widest] <= NARROWEST:
                break
            widths[widest] -= 1
            over -= 1


def _row(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    shown = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        shown.append(padded(clipped(text, width, keep_end=column.keeps_end), width))
    return GAP.join(shown).rstrip(" ")
