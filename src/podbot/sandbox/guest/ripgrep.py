"""Searching by ``rg``, with the answers that Python would give."""

from __future__ import annotations

import os
import re
import stat
import sys
import time

from podbot.sandbox.guest.families import exit_of
from podbot.sandbox.guest.files import under
from podbot.sandbox.guest.globs import Glob
from podbot.sandbox.guest.processes import Exec, widen
from podbot.sandbox.guest.search import (
    BINARY_PROBE,
    SEARCH_FILE_LIMIT,
    SEARCH_GRACE,
    SEARCH_OUTPUT_LIMIT,
    Finds,
    compile_search,
    count_large,
    in_time,
    search_by_worker,
)
from podbot.sandbox.guest.wire import READ_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from podbot.sandbox.guest.patterns import Translated
    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.search import Line
    from podbot.sandbox.guest.wire import Head
    from podbot.sandbox.guest.workers import Answer

    Row = tuple[str, int | str, str]
    """(path, number, line); the number may be in digits still"""
    Kind = Literal["text", "binary", "large"]
    """What a file is in which something was found."""


SEARCH_LEASH = 0.5  # how often to see whether rg, which looks at no file's size, is in a huge one
SEARCH_LEAST = 0.01  # what rg may take however little time is left
SEARCH_AGAIN = 0.1  # with less time left than this, rg is not started once more
SEARCH_NAP = 0.004  # between two looks at what rg has written; a wide pipe holds that much
RG_FLAGS = (
    "--no-config", "--no-messages", "--hidden", "--no-ignore", "--encoding=none",
    "--null", "--line-number", "--no-heading", "--with-filename", "--color=never",
)  # fmt: skip
TEXT_FLAGS = ("--text",)
# rg names the files in which it met a NUL, and says in the end how much it read: only a few files
# have to be opened once more. Not from maps: those are slower, and end rg when a file shrinks.
WATCH_FLAGS = ("--binary", "--no-mmap", "--stats")
ROW = re.compile(r"(\./[^\0\n]*)\0([0-9]+):([^\n]*)\n")
NOTE = re.compile(
    r'(\./[^\0\n]*)(: binary file matches \(found "\\0" byte around offset [0-9]+\))\n'
)
STATS = re.compile(
    r"\n(?:[0-9]+ [a-z ]+\n){5}([0-9]+) bytes searched\n(?:[0-9.]+ seconds[a-z ]*\n)+"
)
# What rg says of a file that it leaves out for its size.
RG_LEFT_OUT = re.compile(rb": [0-9]+ bytes$", re.MULTILINE)
_UTF8 = sys.getfilesystemencoding() == "utf-8"
PLAIN_GLOB = re.compile(r"[A-Za-z0-9_./*-]+\Z")


class Ripgrep:
    """One search by rg in a folder, its output turned into the answer."""

    def __init__(
        self, guest: Guest, request: Head, folder_fd: int, rg: str, translated: Translated
    ) -> None:
        self._guest, self._request = guest, request
        self._rg = rg
        self._folder = folder_fd
        self._pattern, self._check, self._watched = translated
        self._sorted = self._bounded = False
        self._ends: float = time.monotonic() + request["timeout"]
        self._begin()

    def _begin(self) -> None:
        request = self._request
        argv = [self._rg, *RG_FLAGS, *(WATCH_FLAGS if self._watched else TEXT_FLAGS)]
        glob = request["glob"]
        self._narrowed = bool(glob and PLAIN_GLOB.match(glob) and ".." not in glob)
        if self._narrowed:
            argv.append("--glob=/" + glob.lstrip("/"))
        timeout = max(self._left(), SEARCH_LEAST)
        if self._bounded:
            argv.append(f"--max-filesize={SEARCH_FILE_LIMIT}")
            if not self._narrowed:  # else it would tell of every file, not of those left out only
                argv.append("--debug")
        if self._sorted:
            argv.append("--sort=path")
        argv += ["--regexp=" + self._pattern, "./"]
        inner = {"id": request["id"], "max_output": SEARCH_OUTPUT_LIMIT, "timeout": timeout}
        job = Searching(self._guest, inner, argv, self._folder, self)
        if not self._bounded:
            self._guest.loop.after(SEARCH_LEASH, job.check)

    def done(self, job: Searching, status: int) -> None:
        """rg ended: answer, or look again in another way."""
        guest, request = self._guest, self._request
        code, number = exit_of(status)
        late = job.timed_out
        if not (self._bounded or job.cancelled) and (late or number):
            self._bounded = True  # there may be a file without an end, or nearly so
            if self._again(watched=False):
                return
            late = True
        whole = not (job.out.lost or late)
        if self._watched:
            found = parse_watched(self._folder, job.out.text(), whole)
            if found.doubtful and self._again(watched=False):
                return
            late = late or found.doubtful
        else:
            found = Rows(parse_rg(job.out.text(), complete=whole))
        rows = found.rows
        if job.cancelled or (late and not rows):
            self._close()
            guest.refuse(request, "timeout", "the search took longer than its time limit")
            return
        if job.out.lost and not self._sorted and not late:
            self._sorted = True  # too much to sort here: let rg bring it in order, and cut
            if self._again(self._watched):
                return
            late = True
        if not late and (code not in (0, 1, 2) or (code == 2 and not job.out.size)):
            # It would not have this pattern after all, or could not start.
            rest = max(self._left(), SEARCH_LEAST)
            search_by_worker(guest, self._folder, dict(request, timeout=rest))
            self._close()
            return
        found.cut, found.timed_out = job.out.lost > 0, late
        found.verify = self._check == "all" or (
            self._check == "wide" and any(not row[2].isascii() for row in rows)
        )
        found.count = (self._bounded and not late) and (
            self._narrowed or RG_LEFT_OUT.search(job.err.text()) is not None
        )
        if found.verify or found.count:
            folder = os.dup(self._folder)
            inner = dict(request, timeout=max(self._left(), SEARCH_GRACE) + SEARCH_GRACE)
            guest.in_worker(inner, lambda: self._ranked(folder, found))
            os.close(folder)
        else:
            head, payload = self._ranked(self._folder, found)
            guest.answer(dict(head, id=request["id"]), payload)
        self._close()

    def _left(self) -> float:
        return self._ends - time.monotonic()

    def _again(self, watched: bool) -> bool:
        """Start rg once more; False when there is no time for it."""
        if self._left() < SEARCH_AGAIN:
            return False
        self._watched = watched
        self._begin()
        return True

    def _ranked(self, folder: int, found: Rows) -> Answer:
        rows = found.rows
        if found.verify:
            rows = []
            time_to_tell = max(self._left(), SEARCH_GRACE)
            if not in_time(time_to_tell, lambda: self._verify(found.rows, rows)):
                found.timed_out = True
        finds = rank(folder, rows, self._request, found.kinds, found.looked)
        finds.cut = finds.cut or found.cut
        finds.timed_out = found.timed_out
        if found.count:  # no match is lost when there is no time for it
            in_time(self._left(), lambda: count_large(folder, self._request, finds))
        return finds.answer()

    def _verify(self, rows: list[Row], verified: list[Row]) -> None:
        search = compile_search(self._request).search
        for row in rows:
            if (self._check == "wide" and row[2].isascii()) or search(row[2]):
                verified.append(row)

    def _close(self) -> None:
        os.close(self._folder)


class Rows:
    """What rg found, and what is left to do with it."""

    def __init__(self, rows: list[Row], doubtful: bool = False) -> None:
        self.rows = rows
        self.doubtful = doubtful  # whether rg should search again, taking every file for text
        self.kinds: dict[str, Kind] = {}  # of the files that were looked at already
        self.looked = False  # whether the other files are known to be text
        self.cut = self.timed_out = self.verify = self.count = False


class Searching(Exec):
    """rg as a job: like a command, but its end goes to the search."""

    def __init__(
        self, guest: Guest, request: Head, argv: list[str], folder_fd: int, search: Ripgrep
    ) -> None:
        self._search = search
        env = {"PATH": "/usr/bin:/bin"}
        self._read, self._wide = 0, False
        super().__init__(guest, request, argv, env, folder_fd, b"")
        self._wide = widen(self.out.fd)

    def _changed(self) -> None:
        # rg writes once for each file with a match. Reading as often takes a processor from it.
        before, self._read = self._read, self.out.size + self.out.lost
        if self._wide and self.status is None and self._read - before < READ_SIZE:
            self.out.pause()
            self.guest.loop.after(SEARCH_NAP, self.out.resume)
        super()._changed()

    def check(self) -> None:
        """End it if it is in a file that is larger than what is searched; many take their time."""
        self.guest.loop.reap()
        if self.status is not None or self._finished:
            return
        if _has_huge_file(self.pid):
            self._expired()
        else:
            self.guest.loop.after(SEARCH_LEASH, self.check)

    def finish(self) -> None:
        """Hand over instead of answering."""
        if self._finished or self.status is None:
            return
        self._finished = True
        if self.timer:
            self.timer.clear()
        self.guest.jobs.pop(self.number, None)
        self.out.close()
        self.err.close()
        self._search.done(self, self.status)


def _has_huge_file(pid: int) -> bool:
    """Whether a process has a file open that is too large to be searched; or nobody can tell."""
    opened = f"/proc/{pid}/fd"
    try:
        for number in os.listdir(opened):
            try:
                facts = os.stat(f"{opened}/{number}")
            except FileNotFoundError:  # closed meanwhile
                continue
            if stat.S_ISREG(facts.st_mode) and facts.st_size > SEARCH_FILE_LIMIT:
                return True
    except OSError:
        return True
    return False


def parse_rg(data: bytes, complete: bool) -> list[Row]:
    """[(path, number, line)] from rg's output (path NUL number : line)."""
    text = data.decode("utf-8", "surrogateescape")
    rows: list[Row] = []
    start = 0
    end = len(text) if complete else text.rfind("\n") + 1
    while start < end:
        middle = text.find("\0", start, end)
        colon = text.find(":", middle, end)
        stop = text.find("\n", colon, end)
        if middle < 0 or colon < 0:
            break
        if stop < 0:
            stop = end
        rows.append((text[start:middle], int(text[middle + 1 : colon]), text[colon + 1 : stop]))
        start = stop + 1
    return rows


def parse_watched(folder: int, data: bytes, complete: bool) -> Rows:
    """The same from what rg says with `WATCH_FLAGS`, with what it says of the files.

    It gives no line of a file whose first 64 KiB hold a NUL, and none after a NUL further in, but a
    note in the end that the file has matches.
    """
    text = data.decode("utf-8", "surrogateescape")
    if not complete:
        text = text[: _end_of_entries(text)]
    rows: list[tuple[str, str, str]] = ROW.findall(text)
    found = Rows([*rows])
    size = sum([len(path) + len(number) + len(line) + 3 for path, number, line in rows])
    stats = STATS.fullmatch(text, size)  # if nothing is between the rows
    if stats is None:
        rest = ROW.sub("", text)
        notes = NOTE.findall(rest)
        rest = NOTE.sub("", rest)
        stats = STATS.fullmatch(rest)
        if stats is None and rest:  # a name with a newline, or words of another rg
            return Rows(ROW.findall(text, 0, _end_of_entries(text)), doubtful=True)
        for path, note in notes:
            name = _name(path)
            if _is_there(folder, _name(f"{path}{note}\n.")):  # a name that pretends to be a note
                return Rows([], doubtful=True)
            found.kinds[name] = kind = _looked(folder, name)
            if kind == "text":  # its NUL is far in: all its lines are wanted
                found.doubtful = True
                return found
    # What was read to its end is no larger than all that was read.
    found.looked = stats is not None and int(stats.group(1)) <= SEARCH_FILE_LIMIT
    return found


def _end_of_entries(text: str) -> int:
    """Where something else than rows and notes begins, such as a half row."""
    end = 0
    while True:
        entry = ROW.match(text, end) or NOTE.match(text, end)
        if entry is None:
            return end
        end = entry.end()


def _is_there(folder: int, path: str) -> bool:
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _name(path: str) -> str:
    """A path that rg gave, as Python names files."""
    if not _UTF8:
        path = os.fsdecode(path.encode("utf-8", "surrogateescape"))
    return path[2:] if path.startswith("./") else path


def rank(
    folder: int, rows: list[Row], request: Head, kinds: dict[str, Kind], looked: bool
) -> Finds:
    """Sort what rg found, drop binary files and what the glob leaves out, cut.

    ``kinds`` are those of files known already; with ``looked`` all others are text.
    """
    by_file: dict[str, list[Line]] = {}
    last = None
    for path, number, line in rows:
        if path != last:
            last = path
            lines = by_file.setdefault(_name(path), [])
        lines.append((number, line))
    for name in kinds:
        by_file.setdefault(name, [])
    narrow = Glob(request["glob"]) if request["glob"] else None
    finds = Finds(request["max_matches"])
    folder_shown = under(request["path"], "")
    for name in sorted(by_file, key=lambda name: name.replace("/", "\0")):  # as a listing would
        if narrow is not None and not narrow.matches(name):
            continue
        kind = kinds.get(name) or ("text" if looked else _looked(folder, name))
        if kind == "large":
            finds.skipped += 1
        if kind != "text":
            continue
        if not finds.add(folder_shown + name, by_file[name]):
            break
    return finds


def _looked(folder: int, path: str) -> Kind:
    """What kind of file it is that something was found in."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return "text"
    try:
        if os.fstat(fd).st_size > SEARCH_FILE_LIMIT:
            return "large"
        return "binary" if b"\0" in os.read(fd, BINARY_PROBE) else "text"
    except OSError:
        return "text"
    finally:
        os.close(fd)
