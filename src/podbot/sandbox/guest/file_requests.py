"""What the host can ask about files: one function for each request, in the order of ops.py.

Large contents come and go in parts, by handles of `Guest`.
"""

from __future__ import annotations

import errno
import json
import os
import stat

from podbot.sandbox.guest.drafts import Draft, Reading, Spool
from podbot.sandbox.guest.files import describe, is_folder, is_there, under
from podbot.sandbox.guest.globs import Glob
from podbot.sandbox.guest.patterns import rg_pattern
from podbot.sandbox.guest.refusals import Refused
from podbot.sandbox.guest.ripgrep import Ripgrep
from podbot.sandbox.guest.search import search_by_worker
from podbot.sandbox.guest.trees import entries_of, remove_tree, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.trees import Entry
    from podbot.sandbox.guest.wire import Head
    from podbot.sandbox.guest.workers import Answer

NAMES_LIMIT = 8 * 1024 * 1024
FEW_ENTRIES = 100


def _stdin_open(guest: Guest, head: Head, payload: bytes) -> None:
    spool = Spool()
    spool.write(payload)
    guest.answer({"id": head["id"], "handle": guest.keep(spool)})


def _handle_write(guest: Guest, head: Head, payload: bytes) -> None:
    thing = guest.handles.get(head["handle"])
    if not isinstance(thing, (Draft, Spool)):
        raise Refused("invalid", "there is no such handle")
    try:
        thing.write(payload)
    except Refused:
        guest.handles.pop(head["handle"]).close()
        raise
    guest.answer({"id": head["id"]})


def _handle_read(guest: Guest, head: Head, _: bytes) -> None:
    reading = guest.handles.get(head["handle"])
    if not isinstance(reading, Reading):
        raise Refused("invalid", "there is no such handle")
    data = reading.read(head["size"])
    if not data:
        guest.handles.pop(head["handle"]).close()
    guest.answer({"id": head["id"]}, data)


def _handle_close(guest: Guest, head: Head, _: bytes) -> None:
    thing = guest.handles.pop(head["handle"], None)
    if thing is not None:
        thing.close()
    guest.answer({"id": head["id"]})


def _read(guest: Guest, head: Head, _: bytes) -> None:
    fd, found = guest.files.regular(head["path"])
    size: int = head["size"]
    reading = Reading(fd, head["offset"])
    try:
        if found.st_size:
            # One more than there is: enough to see that it grew, without a large buffer.
            data = reading.read(min(size, max(1, found.st_size - head["offset"] + 1)))
        else:
            data = reading.read_on(size)  # /proc says 0 of every file, and gives it in bits
    except BaseException:
        reading.close()
        raise
    reply = {"id": head["id"]}
    if len(data) == size and not 0 < found.st_size <= head["offset"] + len(data):
        reply["handle"] = guest.keep(reading)
    else:
        reading.close()
    guest.answer(reply, data)


def _write(guest: Guest, head: Head, payload: bytes) -> None:
    draft = Draft(guest.files, head, len(payload))
    try:
        draft.write(payload)
        draft.finish()
    except BaseException:
        draft.close()
        raise
    guest.answer({"id": head["id"]})


def _write_open(guest: Guest, head: Head, payload: bytes) -> None:
    draft = Draft(guest.files, head, None)
    try:
        draft.write(payload)
    except BaseException:
        draft.close()
        raise
    guest.answer({"id": head["id"], "handle": guest.keep(draft)})


def _write_done(guest: Guest, head: Head, _: bytes) -> None:
    guest.taken(head["handle"], Draft).finish()
    guest.answer({"id": head["id"]})


def _edit(guest: Guest, head: Head, payload: bytes) -> None:
    path, most = head["path"], head["max_bytes"]
    old, new = payload[: head["old_size"]], payload[head["old_size"] :]
    fd, found = guest.files.regular(path)
    with os.fdopen(fd, "rb") as file:
        if found.st_size > most:
            raise Refused("too_large", f"{path} is larger than {most} bytes")
        data = file.read(most + 1)
    count = data.count(old)
    if count == 0:
        raise Refused("no_match", f"the text to replace is not in {path}")
    again = data.find(old, data.find(old) + 1) >= 0  # places that overlap count too
    if again and not head["replace_all"]:
        raise Refused("not_unique", f"the text to replace is {max(count, 2)} times in {path}")
    edited = data.replace(old, new)
    draft = Draft(guest.files, {"path": path, "mode": "replace"}, len(edited))
    try:
        draft.write(edited)
        draft.finish()
    except BaseException:
        draft.close()
        raise
    guest.answer({"id": head["id"], "count": count})


def _list(guest: Guest, head: Head, _: bytes) -> None:
    path = head["path"]
    fd = guest.files.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            few = min(head["max_entries"], FEW_ENTRIES)
            reply, payload = (
                _listing(dict(head, max_entries=few), walk(fd))
                if head["recursive"]
                else _listing(head, entries_of(fd))
            )
        except Refused:
            if not head["recursive"]:
                raise
            # Only a small tree is walked here: a worker costs more than that.
            guest.in_worker(head, lambda: _listing(head, walk(fd)))
        else:
            guest.answer(dict(reply, id=head["id"]), payload)
    finally:
        os.close(fd)


def _listing(head: Head, entries: Iterable[Entry]) -> Answer:
    path, most = head["path"], head["max_entries"]
    found, room = [], NAMES_LIMIT
    for name, facts, parent in entries:
        target = None
        if stat.S_ISLNK(facts.st_mode):
            try:
                target = os.readlink(name.rsplit("/", 1)[-1], dir_fd=parent)
            except OSError:
                continue  # gone since it was listed, or another thing by now
        found.append(describe(under(path, name), facts, target))
        room -= len(name) + len(target or "")
        if len(found) > most or room < 0:
            raise Refused("too_large", f"{path} has more than {most} entries, or too deep ones")
    return {}, json.dumps(found).encode("ascii")


def _newest(guest: Guest, head: Head, _: bytes) -> None:
    fd = guest.files.open(head["path"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        reply, payload = _latest(dict(head, max_entries=min(head["max_entries"], FEW_ENTRIES)), fd)
        if reply["complete"] or head["max_entries"] <= FEW_ENTRIES:
            guest.answer(dict(reply, id=head["id"]), payload)
        else:
            guest.in_worker(head, lambda: _latest(head, fd))
    finally:
        os.close(fd)


def _latest(head: Head, fd: int) -> Answer:
    """The files that came to be as they are last: a file may say that it is older than that."""
    path, most, wanted = head["path"], head["max_entries"], head["max_files"]
    found: list[tuple[int, str, os.stat_result]] = []
    total, complete = 0, True
    for number, (name, facts, _) in enumerate(walk(fd)):
        if number == most:
            complete = False
            break
        if stat.S_ISREG(facts.st_mode):
            total += 1
            found.append((facts.st_ctime_ns, name, facts))
            if len(found) > 2 * wanted + FEW_ENTRIES:
                _cut_to_newest(found, wanted)
    _cut_to_newest(found, wanted)
    rows, room = [], NAMES_LIMIT
    for _, name, facts in found:
        room -= len(name)
        if room < 0:
            break
        rows.append(describe(under(path, name), facts, None))
    return {"total": total, "complete": complete}, json.dumps(rows).encode("ascii")


def _cut_to_newest(found: list[tuple[int, str, os.stat_result]], wanted: int) -> None:
    found.sort(key=lambda each: (-each[0], each[1]))
    del found[wanted:]


def _glob(guest: Guest, head: Head, _: bytes) -> None:
    pattern = Glob(head["pattern"])
    fd = guest.files.open(head["path"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        guest.in_worker(head, lambda: _globbed(fd, head, pattern))
    finally:
        os.close(fd)


def _globbed(fd: int, head: Head, pattern: Glob) -> Answer:
    path, most = head["path"], head["max_entries"]
    found, room = [], NAMES_LIMIT
    for name, _, _ in walk(fd):
        if pattern.matches(name):
            found.append(under(path, name))
            room -= len(name)
            if len(found) > most or room < 0:
                raise Refused("too_large", f"more than {most} entries match, or too deep ones")
    return {}, json.dumps(found).encode("ascii")


def _grep(guest: Guest, head: Head, _: bytes) -> None:
    if head["glob"]:
        Glob(head["glob"])
    path = head["path"]
    fd = guest.files.open(path, os.O_RDONLY)
    folder = stat.S_ISDIR(os.fstat(fd).st_mode)
    if not folder and not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused("not_a_file", f"{path} is neither a file nor a folder")
    rg = guest.rg if folder else None
    translated = rg_pattern(head["pattern"], head["ignore_case"]) if rg else None
    if rg and translated is not None:
        try:
            Ripgrep(guest, head, fd, rg, translated)  # it owns the descriptor from here on
            return
        except Refused:
            pass  # rg cannot be started here: Python does it
    try:
        search_by_worker(guest, fd, head)
    finally:
        os.close(fd)


def _stat(guest: Guest, head: Head, _: bytes) -> None:
    path = head["path"]
    flags = os.O_PATH | (0 if head["follow"] else os.O_NOFOLLOW)
    fd = guest.files.open(path, flags)
    try:
        facts = os.fstat(fd)
        link = stat.S_ISLNK(facts.st_mode)
        target = os.readlink("", dir_fd=fd) if link else None
    finally:
        os.close(fd)
    guest.answer({"id": head["id"], "info": describe(path, facts, target)})


def _realpath(guest: Guest, head: Head, _: bytes) -> None:
    fd = guest.files.open(head["path"], os.O_PATH)
    try:
        real = os.readlink(f"/proc/self/fd/{fd}")
        there = os.stat(real)
        if not os.path.samestat(there, os.fstat(fd)):
            raise Refused("not_found", f"{head['path']} was moved meanwhile")
    finally:
        os.close(fd)
    guest.answer({"id": head["id"], "real": real})


def _move(guest: Guest, head: Head, _: bytes) -> None:
    path, to = head["path"], head["to"]
    source, name = guest.files.parent(path)
    try:
        try:
            target, new_name = guest.files.parent(to)
        except Refused as error:
            if error.kind != "not_found":
                raise
            guest.files.make_folders(os.path.dirname(to.rstrip("/")))
            target, new_name = guest.files.parent(to)
        try:
            os.lstat(name, dir_fd=source)
            if not head["overwrite"] and is_there(target, new_name):
                raise Refused("exists", f"{to} exists already")
            os.replace(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # Another mount, or a folder of an overlay's lower layer: copy, then remove.
            guest.in_worker(head, lambda: _moved_by_copy(guest, path, to))
            return
        finally:
            os.close(target)
    finally:
        os.close(source)
    guest.answer({"id": head["id"]})


def _moved_by_copy(guest: Guest, path: str, to: str) -> Answer:
    import shutil

    source, name = guest.files.parent(path)
    target, new_name = guest.files.parent(to)
    begin = f"/proc/self/fd/{source}/{name}"
    end = f"/proc/self/fd/{target}/{new_name}"
    if os.path.isdir(begin) and not os.path.islink(begin):
        shutil.copytree(begin, end, symlinks=True)
    else:
        shutil.copy2(begin, end, follow_symlinks=False)
    remove_tree(source, name)
    return {}, b""


def _remove(guest: Guest, head: Head, _: bytes) -> None:
    path = head["path"]
    if guest.files.is_workdir(path):
        raise Refused("invalid", f"{path} is the working folder itself")
    try:
        folder, name = guest.files.parent(path)
    except Refused as error:
        if error.kind == "not_found" and head["missing_ok"]:
            guest.answer({"id": head["id"]})
            return
        raise
    try:
        found = os.lstat(name, dir_fd=folder)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=folder)
        elif not head["recursive"]:
            os.rmdir(name, dir_fd=folder)
        else:
            guest.in_worker(head, lambda: _removed(folder, name))
            return
    except FileNotFoundError:
        if not head["missing_ok"]:
            raise
    finally:
        os.close(folder)
    guest.answer({"id": head["id"]})


def _removed(folder: int, name: str) -> Answer:
    remove_tree(folder, name)
    return {}, b""


def _mkdir(guest: Guest, head: Head, _: bytes) -> None:
    path = head["path"]
    above = os.path.dirname(path.rstrip("/"))
    if head["parents"] and above:
        guest.files.make_folders(above)
    try:
        folder, name = guest.files.parent(path)
    except Refused as error:
        if error.kind == "invalid" and head["exist_ok"]:  # the root is there already
            guest.answer({"id": head["id"]})
            return
        raise
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        if not head["exist_ok"] or not is_folder(folder, name):
            raise
    finally:
        os.close(folder)
    guest.answer({"id": head["id"]})


def _symlink(guest: Guest, head: Head, _: bytes) -> None:
    above = os.path.dirname(head["path"].rstrip("/"))
    if above:
        guest.files.make_folders(above)
    folder, name = guest.files.parent(head["path"])
    try:
        os.symlink(head["target"], name, dir_fd=folder)
    finally:
        os.close(folder)
    guest.answer({"id": head["id"]})


OPERATIONS: dict[object, Callable[[Guest, Head, bytes], None]] = {
    "stdin_open": _stdin_open, "handle_write": _handle_write, "handle_read": _handle_read,
    "handle_close": _handle_close, "read": _read, "write": _write, "write_open": _write_open,
    "write_done": _write_done, "edit": _edit, "list": _list, "newest": _newest, "glob": _glob,
    "grep": _grep, "stat": _stat, "realpath": _realpath, "move": _move, "remove": _remove,
    "mkdir": _mkdir, "symlink": _symlink,
}  # fmt: skip
