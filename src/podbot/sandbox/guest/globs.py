"""Patterns of paths, matched one name at a time; the memory backend matches with them too."""

from __future__ import annotations

from podbot.sandbox.guest.refusals import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Glob:
    """A pattern such as ``src/**/*.py``, matched one name at a time on the way down.

    ``*`` and ``?`` stay within a name, ``**`` as a whole segment crosses any number of folders.
    No pattern can make this slow: the state is a set of places in the pattern.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if not parts or ".." in parts:
            raise Refused("bad_pattern", f"{pattern!r} is not a pattern of paths below a folder")
        self._parts = [None if part == "**" else NamePattern(part) for part in parts]
        self.start = self._skip({0})

    def step(self, state: frozenset[int], name: str) -> frozenset[int]:
        """The state below an entry of this name; empty when nothing there can match."""
        after = set()
        last = len(self._parts) - 1
        for index in state:
            if index > last:
                continue
            part = self._parts[index]
            if part is None:
                after.add(index)
                if index == last:
                    after.add(index + 1)  # a last ** takes everything below
            elif part.matches(name):
                after.add(index + 1)
        return self._skip(after)

    def accepts(self, state: frozenset[int]) -> bool:
        """Whether the names that led to this state match the whole pattern."""
        return len(self._parts) in state

    def leads_on(self, state: frozenset[int]) -> bool:
        """Whether anything below the names that led to this state could match."""
        return any(index < len(self._parts) for index in state)

    def matches(self, path: str) -> bool:
        """Whether a relative path matches."""
        state = self.start
        for name in path.split("/"):
            state = self.step(state, name)
        return self.accepts(state)

    def _skip(self, state: set[int]) -> frozenset[int]:
        """A ``**`` before more parts may stand for no folder at all."""
        for index, part in enumerate(self._parts[:-1]):
            if part is None and index in state:
                state.add(index + 1)
        return frozenset(state)


class NamePattern:
    """One segment of a glob: text, ``*``, ``?`` and ``[…]``."""

    def __init__(self, text: str) -> None:
        self._steps: list[Callable[[str], bool] | str | None] = []  # None is a star
        index = 0
        while index < len(text):
            char = text[index]
            index += 1
            if char == "*":
                self._steps.append(None)
            elif char == "?":
                self._steps.append(lambda _: True)
            elif char == "[":
                end = text.find("]", index + 1 + (text[index : index + 1] == "!"))
                if end < 0:
                    self._steps.append("[")
                    continue
                self._steps.append(one_of(text[index:end]))
                index = end + 1
            else:
                self._steps.append(char)

    def matches(self, name: str) -> bool:
        """Whether a name matches: a star that fails is tried once more, one character later."""
        steps = self._steps
        at = place = 0
        star, resume = -1, 0
        while place < len(name):
            step = steps[at] if at < len(steps) else ""
            if step is None:
                star, resume = at, place
                at += 1
            elif step == name[place] or (callable(step) and step(name[place])):
                at += 1
                place += 1
            elif star >= 0:
                resume += 1
                at, place = star + 1, resume
            else:
                return False
        return all(step is None for step in steps[at:])


def one_of(inside: str) -> Callable[[str], bool]:
    """The test for a set: characters and ranges, negated by a leading ``!``."""
    negated = inside.startswith("!")
    text = inside[1:] if negated else inside
    ranges = []
    index = 0
    while index < len(text):
        if text[index + 1 : index + 2] == "-" and index + 2 < len(text):
            ranges.append((text[index], text[index + 2]))
            index += 3
        else:
            ranges.append((text[index], text[index]))
            index += 1
    return lambda char: any(low <= char <= high for low, high in ranges) != negated
