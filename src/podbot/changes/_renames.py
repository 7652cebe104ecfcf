"""Files that were moved: a deletion and an addition of the same or nearly the same contents.

Only pairs up what capture found; applying a rename is removing its source and adding its path.
The same contents are always looked for, similar ones only among a number and size of files that
can be read in no time. Empty files, links, hard links and special files are never paired.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import BinaryIO

from podbot.changes.diffs import sides
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType
from podbot.frozen import dataclass, replace
from podbot.sandbox import extents

MIN_SIMILARITY = 50
"""Percent of the larger file that both must share, as git has it."""
MAX_FILES = 1000
"""Similar contents are not looked for if more files than this came, or went."""
MAX_SIZE = 1024 * 1024
"""The largest file that is compared with others that are not the same."""
MAX_READ = 16 * 1024 * 1024
"""How much of each side is read to find similar files."""
MAX_EXACT = 1024 * 1024 * 1024
"""How much of files with the same beginning is read to see whether they are the same."""

_BEGINNING = 64 * 1024
_CANDIDATES = 4
_COMMON = 8  # a line that more files have than this says little about where one came from

_Pair = tuple[Change, Change]


def detect(changes: ChangeSet) -> ChangeSet:
    """The same changes, with pairs of a deletion and an addition made one where they belong."""
    renamed: dict[Change, Change] = {}
    unaltered: set[str] = set()
    for target in changes.targets:
        gone = [c for c in changes if c.target == target and _is_candidate(c, ChangeKind.DELETED)]
        # What the host had under this very name, and has removed since, was not moved there.
        come = [
            c
            for c in changes
            if c.target == target
            and c.where not in changes.lost
            and _is_candidate(c, ChangeKind.ADDED)
        ]
        if not gone or not come:
            continue
        exact = _exact(changes, gone, come)
        unaltered.update(change.where for change in exact)
        renamed.update(exact)
        taken = set(renamed.values())
        gone = [change for change in gone if change not in taken]
        come = [change for change in come if change not in renamed]
        if max(len(gone), len(come)) <= MAX_FILES:
            renamed.update(_similar(changes, gone, come))
    if not renamed:
        return changes
    sources = set(renamed.values())
    return replace(
        changes,
        changes=tuple(
            _rename(renamed[change], change) if change in renamed else change
            for change in changes
            if change not in sources
        ),
        unaltered=frozenset(unaltered),
    )


def _rename(gone: Change, come: Change) -> Change:
    return replace(come, kind=ChangeKind.RENAMED, old=gone.old, source=gone.path)


def _is_candidate(change: Change, kind: ChangeKind) -> bool:
    state = change.old if kind is ChangeKind.DELETED else change.new
    return (
        change.kind is kind
        and state is not None
        and state.type is FileType.FILE
        and state.size > 0
        and state.links == 1
    )


def _size(change: Change) -> int:
    state = change.new or change.old
    return state.size if state is not None else 0


def _name(change: Change) -> str:
    return change.path.rpartition("/")[2]


# The very same contents


def _exact(changes: ChangeSet, gone: list[Change], come: list[Change]) -> dict[Change, Change]:
    """Pairs of the same contents; of several alike, those of the same name first."""
    sizes = {_size(change) for change in gone} & {_size(change) for change in come}
    if not sizes:
        return {}
    open_old, open_new = changes.contents.open_old, changes.contents.open_new
    sources: dict[tuple[int, bytes], list[Change]] = defaultdict(list)
    for change in gone:
        if _size(change) in sizes and (beginning := _beginning(open_old, change)):
            sources[beginning].append(change)
    wanted: dict[tuple[int, bytes], list[Change]] = defaultdict(list)
    for change in come:
        if _size(change) in sizes and (beginning := _beginning(open_new, change)):
            wanted[beginning].append(change)
    found: dict[Change, Change] = {}
    allowance = MAX_EXACT
    for beginning, additions in wanted.items():
        left = sources.get(beginning, [])
        size = beginning[0]
        for source, addition in _by_name(left, additions):
            if size > _BEGINNING:
                allowance -= size
                if allowance < 0 or not _is_same(changes, source, addition):
                    continue
            found[addition] = source
    return found


def _beginning(opener: Callable[[Change], BinaryIO], change: Change) -> tuple[int, bytes] | None:
    """The size of a file and a hash of its first bytes; None if it cannot be read."""
    try:
        with opener(change) as file:
            data = extents.exactly(file, min(_size(change), _BEGINNING))
    except OSError:
        return None
    from hashlib import blake2b  # only where something came and something went

    return _size(change), blake2b(data).digest()


def _by_name(gone: list[Change], come: list[Change]) -> list[_Pair]:
    """Whom to pair with whom if all are alike: first by name, then in order."""
    names: dict[str, list[Change]] = defaultdict(list)
    for change in reversed(gone):
        names[_name(change)].append(change)
    pairs = [(names[_name(c)].pop(), c) for c in come if names.get(_name(c))]
    used = {change for pair in pairs for change in pair}
    rest = ([c for c in gone if c not in used], [c for c in come if c not in used])
    return pairs + list(zip(*rest, strict=False))


def _is_same(changes: ChangeSet, source: Change, addition: Change) -> bool:
    try:
        with (
            changes.contents.open_old(source) as old,
            changes.contents.open_new(addition) as new,
        ):
            return extents.same(old, new)
    except OSError:
        return False


# Similar contents


@dataclass(frozen=True, slots=True)
class _Text:
    """A file as a bag of lines: how often each is in it, and how long it is, by its hash."""

    change: Change
    size: int
    counts: Counter[int]
    lengths: dict[int, int]


def _similar(changes: ChangeSet, gone: list[Change], come: list[Change]) -> dict[Change, Change]:
    """The most similar pairs of texts, none of them used twice."""
    sources = list(_texts(gone, lambda change: sides.old_side(changes, change)))
    if not sources:
        return {}
    having = _index(sources)
    scored: list[tuple[int, bool, str, str, _Pair]] = []
    for text in _texts(come, lambda change: sides.new_side(changes, change)):
        for source in _candidates(text, sources, having):
            score = _score(source, text)
            if score >= MIN_SIMILARITY:
                alike = _name(source.change) == _name(text.change)
                pair = (source.change, text.change)
                scored.append((-score, not alike, text.change.path, source.change.path, pair))
    scored.sort(key=lambda each: each[:4])
    found: dict[Change, Change] = {}
    taken: set[Change] = set()
    for *_, (source_change, addition) in scored:
        if addition not in found and source_change not in taken:
            found[addition] = source_change
            taken.add(source_change)
    return found


def _texts(files: Iterable[Change], read: Callable[[Change], sides.Side]) -> Iterable[_Text]:
    """The texts among some files, up to a bearable amount."""
    allowance = MAX_READ
    for change in files:
        if _size(change) > min(MAX_SIZE, allowance):
            continue
        data = read(change).data
        if not data:
            continue
        allowance -= len(data)
        lengths = {}
        counts: Counter[int] = Counter()
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()  # after the last line end comes no line that two files could share
        for line in lines:
            mark = hash(line)
            lengths[mark] = len(line) + 1
            counts[mark] += 1
        yield _Text(change, len(data), counts, lengths)


def _index(sources: list[_Text]) -> dict[int, list[int]]:
    """Which sources have a line, for lines that few of them have."""
    having: dict[int, list[int]] = defaultdict(list)
    for number, source in enumerate(sources):
        for mark in source.counts:
            having[mark].append(number)
    return {mark: numbers for mark, numbers in having.items() if len(numbers) <= _COMMON}


def _candidates(text: _Text, sources: list[_Text], having: dict[int, list[int]]) -> list[_Text]:
    """The sources that share most of the rare lines, and those of the same name."""
    shared: Counter[int] = Counter()
    for mark in text.counts:
        for number in having.get(mark, ()):
            shared[number] += text.lengths[mark]
    chosen = [number for number, _ in shared.most_common(_CANDIDATES)]
    chosen += [
        number
        for number, source in enumerate(sources)
        if number not in chosen and _name(source.change) == _name(text.change)
    ][:_CANDIDATES]
    return [sources[number] for number in chosen]


def _score(source: _Text, text: _Text) -> int:
    """How many percent of the larger one they share."""
    larger = max(source.size, text.size)
    if min(source.size, text.size) * 100 < larger * MIN_SIMILARITY:
        return 0
    both = source.counts & text.counts
    return min(100, sum(text.lengths[mark] * times for mark, times in both.items()) * 100 // larger)
