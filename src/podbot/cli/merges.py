"""What two runs over one folder become, for a person: which files, all sides, and the questions.

Merging is the business of `podbot.changes.merging`; this shows it and asks. Lines that both runs
changed are never decided without an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from podbot.changes.diffs.text import shown_lines
from podbot.cli import remedies, wording
from podbot.cli.wording import Display, Style

if TYPE_CHECKING:
    from podbot.changes.diffs.three_way import Choice
    from podbot.changes.model import ChangeSet, Merge
    from podbot.cli.talk import Talk
    from podbot.review import Summary

TITLE = "merged with what other runs applied:"

_KEYS = {
    "h": "the host's lines",
    "r": "this run's lines",
    "b": "both, the host's first",
    "t": "both, this run's first",
    "o": "neither: the lines as they were before both",
    "l": "leave this file as the host has it, without anything of this run",
    "?": "this help; Ctrl-C or Ctrl-D stop and apply nothing",
}


_CHOICES = {"h": "host", "r": "run", "b": "host, then run", "t": "run, then host", "o": "base"}


class EndedError(Exception):
    """There are no more answers."""


def runs(merge: Merge) -> str:
    """Whose changes a change met."""
    names = [wording.name(remedies.called(run)) for run in merge.runs]
    return f"{'run' if len(names) == 1 else 'runs'} {', '.join(names)}"


def sides(merge: Merge, display: Display) -> Iterator[str]:
    """Every overlap of a file with the lines of all three sides."""
    for number in range(len(merge.overlaps)):
        yield from _overlap(merge, number, display)


def _overlap(merge: Merge, number: int, display: Display) -> Iterator[str]:
    one = merge.overlaps[number]
    count = len(merge.overlaps)
    title = f"overlap {number + 1} of {count}, at line {one.host_at} of what the host has"
    yield display.paint(title, "danger")
    versions: tuple[tuple[str, bytes, Style | None], ...] = (
        ("before both:", one.base, "faint"),
        (f"the host, by {runs(merge)}:", one.host, None),
        ("this run:", one.run, "added"),
    )
    for name, text, style in versions:
        yield display.paint(name, "title")
        for line in _lines(text):
            yield display.paint(f"  {line}", style)


def _lines(text: bytes) -> Iterator[str]:
    if not text:
        yield "(nothing)"
        return
    lines = text.split(b"\n")
    ends = not lines[-1]
    yield from shown_lines(lines[:-1] if ends else lines)
    if not ends:
        yield "(no newline at the end)"


def decided(found: Summary, talk: Talk) -> ChangeSet:
    """The changes with what a person wants where lines overlap; what they leave stays open."""
    choices: dict[str, Sequence[Choice]] = {}
    for change, merge in found.overlaps:
        talk.say()
        title = f"{wording.name(change.path)}: {runs(merge)} and this one changed the same lines"
        talk.say(talk.display.paint(title, "title"))
        chosen = _asked(merge, talk)
        if chosen is not None:
            choices[change.where] = chosen
    if not choices:
        return found.changes
    from podbot.changes import merging

    return merging.decided(found.changes, choices)


def _asked(merge: Merge, talk: Talk) -> list[Choice] | None:
    """A choice for each overlap, None to leave the file."""
    chosen: list[Choice] = []
    for number in range(len(merge.overlaps)):
        talk.say("\n".join(_overlap(merge, number, talk.display)))
        choice = _answer(talk)
        if choice is None:
            return None
        chosen.append(choice)
    return chosen


def _answer(talk: Talk) -> Choice | None:
    from podbot.changes.diffs.three_way import Choice

    while True:
        answer = talk.ask(f"which lines? [{','.join(_KEYS)}]")
        if answer is None:
            raise EndedError
        if answer in _CHOICES:
            return Choice(_CHOICES[answer])
        if answer == "l":
            return None
        talk.say("\n".join(f"  {key}  {text}" for key, text in _KEYS.items()))
