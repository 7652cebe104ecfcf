"""A terminal in memory: what a person would see of the bytes that a program wrote to it.

Knows what a hostile program could leave behind to falsify what follows: margins, the other screen,
line-drawing letters, hidden and coloured letters, modes, strings without an end.
"""

from __future__ import annotations

import re

_STRINGS = "]PX^_"
_DRAWN = str.maketrans("abcdefghijklmnopqrstuvwxyz", "▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥")


class Emulator:
    """A screen of some size; ``lines`` are what is readable on it."""

    def __init__(self, rows: int = 24, columns: int = 80):
        self.rows, self.columns = rows, columns
        self.screens = [self._blank(), self._blank()]
        self.saved = [(0, 0), (0, 0)]
        self.other = 0
        self.modes: set[int] = {7, 25}
        self.strings: list[str] = []
        self.kitty: list[int] = []
        self._soft_reset()
        self.at = (0, 0)

    def _blank(self) -> list[list[str]]:
        return [[" "] * self.columns for _ in range(self.rows)]

    def _soft_reset(self) -> None:
        self.top, self.bottom = 0, self.rows - 1
        self.sets = ["B", "B"]
        self.shifted = 0
        self.hidden = self.keypad = self.inserting = False
        self.modes -= {1, 6}

    @property
    def lines(self) -> list[str]:
        """What can be read, without blanks at the end."""
        return ["".join(row).rstrip() for row in self.screens[self.other]]

    def feed(self, data: bytes) -> None:
        """Obey what a program writes."""
        text = data.decode("utf-8", "replace")
        at = 0
        while at < len(text):
            at = self._step(text, at)

    def _step(self, text: str, at: int) -> int:
        char = text[at]
        if char == "\x1b" and at + 1 < len(text):
            return self._escape(text, at + 1)
        row, column = self.at
        if char == "\n":
            self._down()
        elif char == "\r":
            self.at = (row, 0)
        elif char == "\b":
            self.at = (row, max(0, column - 1))
        elif char in "\x0e\x0f":
            self.shifted = char == "\x0e"
        elif char >= " ":
            self._draw(char)
        return at + 1

    def _draw(self, char: str) -> None:
        row, column = self.at
        if column >= self.columns:
            if 7 in self.modes:
                self._down()
                row, column = self.at[0], 0
            else:
                column = self.columns - 1
        if self.sets[self.shifted] == "0":
            char = char.translate(_DRAWN)
        self.screens[self.other][row][column] = " " if self.hidden else char
        self.at = (row, column + 1)

    def _down(self) -> None:
        row, column = self.at
        if row == self.bottom:
            screen = self.screens[self.other]
            del screen[self.top]
            screen.insert(self.bottom, [" "] * self.columns)
        else:
            self.at = (min(row + 1, self.rows - 1), column)

    def _escape(self, text: str, at: int) -> int:
        char = text[at]
        if char == "[":
            found = re.compile(r"([<=>?]?)([0-9;]*)([ -/]*)([@-~])").match(text, at + 1)
            if found is None:
                return at + 1
            self._control(*found.groups())
            return found.end()
        if char in _STRINGS:
            end = re.compile("\x07|\x1b\\\\|\x18").search(text, at)
            self.strings.append(text[at + 1 : end.start() if end else None])
            return len(text) if end is None else end.end()
        if char in "()*+%":
            if char in "()":
                self.sets["()".index(char)] = text[at + 1]
            return at + 2
        if char == "7":
            self.saved[self.other] = self.at
        elif char == "8":
            self.at = self.saved[self.other]
        elif char in "=>":
            self.keypad = char == "="
        return at + 1

    def _control(self, private: str, words: str, between: str, final: str) -> None:
        numbers = [int(word or 0) for word in words.split(";")]
        first = numbers[0]
        if between == "!" and final == "p":
            self._soft_reset()
        elif private == "?" and final in "hl":
            for number in numbers:
                self._mode(number, final == "h")
        elif private == "<" and final == "u":
            del self.kitty[max(0, len(self.kitty) - max(1, first)) :]
        elif private == ">" and final == "u":
            self.kitty.append(first)
        elif private:
            pass
        elif final == "m":
            self.hidden = (self.hidden or 8 in numbers) and 0 not in numbers
        elif final == "r":
            self.top = max(0, first - 1)
            self.bottom = (numbers[1] if len(numbers) > 1 and numbers[1] else self.rows) - 1
            self.at = (0, 0)
        elif final == "H":
            column = numbers[1] if len(numbers) > 1 else 1
            self.at = (min(max(1, first), self.rows) - 1, min(max(1, column), self.columns) - 1)
        elif final == "J":
            self._erase(first)
        elif final == "K":
            row, column = self.at
            self.screens[self.other][row][column:] = [" "] * (self.columns - column)

    def _erase(self, which: int) -> None:
        if which == 2:
            self.screens[self.other] = self._blank()
            return
        row, column = self.at
        screen = self.screens[self.other]
        screen[row][column:] = [" "] * (self.columns - column)
        for below in range(row + 1, self.rows):
            screen[below] = [" "] * self.columns

    def _mode(self, number: int, on: bool) -> None:
        if number in (47, 1047, 1049):
            if on and number == 1049:
                self.saved[self.other] = self.at
            if on and not self.other:
                self.screens[1] = self._blank()
            self.other = int(on)
            if not on and number == 1049:
                self.at = self.saved[0]
        elif on:
            self.modes.add(number)
        else:
            self.modes.discard(number)
        if number == 6:
            self.at = (0, 0)
