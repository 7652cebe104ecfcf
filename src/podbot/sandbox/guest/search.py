"""Searching files by Python alone, and what every search shares: its finds and its limits."""

from __future__ import annotations

import json
import os
import re
import signal
import stat

from podbot.sandbox.guest.files import under
from podbot.sandbox.guest.globs import Glob
from podbot.sandbox.guest.refusals import Refused
from podbot.sandbox.guest.trees import walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.wire import Head
    from podbot.sandbox.guest.workers import Answer

    Found = tuple[str, int, str]
    """(path, line number, line)"""
    Line = tuple[int | str, str]


SEARCH_OUTPUT_LIMIT = 8 * 1024 * 1024  # as JSON it may become six times that
SEARCH_FILE_LIMIT = 64 * 1024 * 1024  # larger files are not searched
SEARCH_GRACE = 2.0  # what a search whose time is up has for telling what it found
BINARY_PROBE = 8192


def search_file(expression: re.Pattern[str], fd: int, path: str, finds: Finds) -> None:
    """Look through one file, unless it is binary or too large."""
    if os.fstat(fd).st_size > SEARCH_FILE_LIMIT:
        finds.skipped += 1
        return
    with os.fdopen(os.dup(fd), "rb") as file:
        head = file.read(BINARY_PROBE)
        if b"\0" in head:
            return
        data = head + file.read(SEARCH_FILE_LIMIT)  # it may be growing
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, raw in enumerate(lines, 1):
        line = raw.decode("utf-8", "surrogateescape")
        if expression.search(line) and not finds.add(path, [(number, line)]):
            return


class Finds:
    """Matches so far, in order, up to a number and to what a reply can hold."""

    def __init__(self, most: int) -> None:
        self._most, self._room = most, SEARCH_OUTPUT_LIMIT
        self._rows: list[Found] = []
        self.cut = self.timed_out = False
        self.skipped = 0

    def add(self, path: str, lines: list[Line]) -> bool:
        """Take in matches of one file; False when there is no room for all of them."""
        rows = self._rows
        for number, line in lines:
            self._room -= len(line)
            if len(rows) == self._most or self._room < 0:
                self.cut = True
                return False
            rows.append((path, int(number), line[:-1] if line[-1:] == "\r" else line))
        return True

    def answer(self) -> Answer:
        """As a reply."""
        if self.timed_out and not self._rows:
            raise Refused("timeout", "the search took longer than its time limit")
        head: Head = {"truncated": self.cut, "timed_out": self.timed_out, "skipped": self.skipped}
        return head, json.dumps(self._rows).encode("ascii")


def compile_search(request: Head) -> re.Pattern[str]:
    """The regular expression of a search."""
    return re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)


def count_large(folder: int, request: Head, finds: Finds) -> None:
    """Count the files of a folder that are too large to be searched, all of them anew."""
    narrow = Glob(request["glob"]) if request["glob"] else None
    finds.skipped = 0
    for name, facts, _ in walk(folder):
        large = stat.S_ISREG(facts.st_mode) and facts.st_size > SEARCH_FILE_LIMIT
        if large and (narrow is None or narrow.matches(name)):
            finds.skipped += 1


class _TimeUp(Exception):
    """The time of a search is up."""


def in_time(seconds: float, work: Callable[[], object]) -> bool:
    """Work until the time is up; tells whether the work was done. Only in a worker."""

    def ring(*_: object) -> NoReturn:
        raise _TimeUp  # even out of the middle of a match: `re` looks for signals as it goes

    signal.signal(signal.SIGALRM, ring)
    try:
        try:
            # It may ring at once. A time of 0 or less would mean never.
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeUp:
        return False
    return True


def search_by_worker(guest: Guest, fd: int, request: Head) -> None:
    """Have Python search, in a worker that stops by itself when the time is up."""
    late = dict(request, timeout=request["timeout"] + SEARCH_GRACE)
    guest.in_worker(late, lambda: search_python(fd, request))


def search_python(fd: int, request: Head) -> Answer:
    """The search by Python alone: a folder or one file. Runs in a worker."""
    finds = Finds(request["max_matches"])
    finds.timed_out = not in_time(request["timeout"], lambda: search_all(fd, request, finds))
    return finds.answer()


def search_all(fd: int, request: Head, finds: Finds) -> None:
    """Look through a file, or through all in a folder."""
    expression = compile_search(request)
    path = request["path"]
    if stat.S_ISREG(os.fstat(fd).st_mode):
        search_file(expression, fd, path, finds)
        return
    narrow = Glob(request["glob"]) if request["glob"] else None
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    for name, facts, parent in walk(fd):
        if not stat.S_ISREG(facts.st_mode) or (narrow is not None and not narrow.matches(name)):
            continue
        try:
            file = os.open(name.rsplit("/", 1)[-1], flags, dir_fd=parent)
        except OSError:
            continue  # gone, or not ours to read
        try:
            search_file(expression, file, under(path, name), finds)
        finally:
            os.close(file)
        if finds.cut:
            break
