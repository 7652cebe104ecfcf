"""Searching by ``rg``, with the answers that Python would give."""

from __future__ import annotations

import os
import re
import time

from podbot.sandbox.guest.families import exit_of
from podbot.sandbox.guest.files import under
from podbot.sandbox.guest.globs import Glob
from podbot.sandbox.guest.processes import Exec
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from podbot.sandbox.guest.patterns import Check
    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.wire import Head
    from podbot.sandbox.guest.workers import Answer

    Row = tuple[bytes, int, bytes]


SEARCH_LEASH = 0.5  # what rg may take when it looks at no file's size, which is quicker
SEARCH_LEAST = 0.01  # what rg may take however little time is left
SEARCH_AGAIN = 0.1  # with less time left than this, rg is not started once more
RG_FLAGS = (
    "--no-config", "--no-messages", "--hidden", "--no-ignore", "--text", "--encoding=none",
    "--null", "--line-number", "--no-heading", "--with-filename", "--color=never",
)  # fmt: skip
# What rg says of a file that it leaves out for its size.
RG_LEFT_OUT = re.compile(rb": [0-9]+ bytes$", re.MULTILINE)
PLAIN_GLOB = re.compile(r"[A-Za-z0-9_./*-]+\Z")


class Ripgrep:
    """One search by rg in a folder, its output turned into the answer."""

    def __init__(
        self, guest: Guest, request: Head, folder_fd: int, rg: str, translated: tuple[str, Check]
    ) -> None:
        self._guest, self._request = guest, request
        self._rg = rg
        self._folder = folder_fd
        self._pattern, self._check = translated
        self._sorted = self._bounded = False
        self._ends: float = time.monotonic() + request["timeout"]
        self._begin()

    def _begin(self) -> None:
        request = self._request
        argv = [self._rg, *RG_FLAGS]
        glob = request["glob"]
        self._narrowed = bool(glob and PLAIN_GLOB.match(glob) and ".." not in glob)
        if self._narrowed:
            argv.append("--glob=/" + glob.lstrip("/"))
        timeout = max(self._left(), SEARCH_LEAST)
        if self._bounded:
            argv.append(f"--max-filesize={SEARCH_FILE_LIMIT}")
            if not self._narrowed:  # else it would tell of every file, not of those left out only
                argv.append("--debug")
        else:
            timeout = min(timeout, SEARCH_LEASH)
        if self._sorted:
            argv.append("--sort=path")
        argv += ["--regexp=" + self._pattern, "./"]
        inner = {"id": request["id"], "max_output": SEARCH_OUTPUT_LIMIT, "timeout": timeout}
        Searching(self._guest, inner, argv, self._folder, self)

    def done(self, job: Searching, status: int) -> None:
        """rg ended: answer, or look again in another way."""
        guest, request = self._guest, self._request
        code, number = exit_of(status)
        late = job.timed_out
        if not (self._bounded or job.cancelled) and (late or number):
            self._bounded = True  # there may be a file without an end, or nearly so
            if self._again():
                return
            late = True
        rows = parse_rg(job.out.text(), complete=not (job.out.lost or late))
        if job.cancelled or (late and not rows):
            self._close()
            guest.refuse(request, "timeout", "the search took longer than its time limit")
            return
        if job.out.lost and not self._sorted and not late:
            self._sorted = True  # too much to sort here: let rg bring it in order, and cut
            if self._again():
                return
            late = True
        if not late and (code not in (0, 1, 2) or (code == 2 and not job.out.size)):
            # It would not have this pattern after all, or could not start.
            rest = max(self._left(), SEARCH_LEAST)
            search_by_worker(guest, self._folder, dict(request, timeout=rest))
            self._close()
            return
        found = _Rows(rows, job.out.lost > 0, late)
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

    def _again(self) -> bool:
        """Start rg once more; False when there is no time for it."""
        if self._left() < SEARCH_AGAIN:
            return False
        self._begin()
        return True

    def _ranked(self, folder: int, found: _Rows) -> Answer:
        rows = found.rows
        if found.verify:
            rows = []
            time_to_tell = max(self._left(), SEARCH_GRACE)
            if not in_time(time_to_tell, lambda: self._verify(found.rows, rows)):
                found.timed_out = True
        finds = rank(folder, rows, self._request)
        finds.cut = finds.cut or found.cut
        finds.timed_out = found.timed_out
        if found.count:  # no match is lost when there is no time for it
            in_time(self._left(), lambda: count_large(folder, self._request, finds))
        return finds.answer()

    def _verify(self, rows: list[Row], verified: list[Row]) -> None:
        search = compile_search(self._request).search
        for row in rows:
            if (self._check == "wide" and row[2].isascii()) or search(
                row[2].decode("utf-8", "surrogateescape")
            ):
                verified.append(row)

    def _close(self) -> None:
        os.close(self._folder)


class _Rows:
    """What rg found, and what is left to do with it."""

    def __init__(self, rows: list[Row], cut: bool, timed_out: bool) -> None:
        self.rows, self.cut, self.timed_out = rows, cut, timed_out
        self.verify = self.count = False


class Searching(Exec):
    """rg as a job: like a command, but its end goes to the search."""

    def __init__(
        self, guest: Guest, request: Head, argv: list[str], folder_fd: int, search: Ripgrep
    ) -> None:
        self._search = search
        env = {"PATH": "/usr/bin:/bin"}
        super().__init__(guest, request, argv, env, folder_fd, b"")

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


def parse_rg(data: bytes, complete: bool) -> list[Row]:
    """[(path, number, line as bytes)] from rg's output (path NUL number : line)."""
    rows: list[Row] = []
    start = 0
    end = len(data) if complete else data.rfind(b"\n") + 1
    while start < end:
        middle = data.find(b"\0", start, end)
        colon = data.find(b":", middle, end)
        stop = data.find(b"\n", colon, end)
        if middle < 0 or colon < 0:
            break
        if stop < 0:
            stop = end
        rows.append((data[start:middle], int(data[middle + 1 : colon]), data[colon + 1 : stop]))
        start = stop + 1
    return rows


def rank(folder: int, rows: list[Row], request: Head) -> Finds:
    """Sort what rg found, drop binary files and what the glob leaves out, cut."""
    by_file: dict[str, list[tuple[int, bytes]]] = {}
    for path, number, line in rows:
        name = os.fsdecode(path[2:] if path.startswith(b"./") else path)
        by_file.setdefault(name, []).append((number, line))
    narrow = Glob(request["glob"]) if request["glob"] else None
    finds = Finds(request["max_matches"])
    for name in sorted(by_file, key=lambda name: name.split("/")):
        if narrow is not None and not narrow.matches(name):
            continue
        look = _looked(folder, name)
        if look == "large":
            finds.skipped += 1
        if look != "text":
            continue
        shown = under(request["path"], name)
        for number, line in by_file[name]:
            if not finds.add(shown, number, line.decode("utf-8", "surrogateescape")):
                return finds
    return finds


def _looked(folder: int, path: str) -> Literal["text", "binary", "large"]:
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
