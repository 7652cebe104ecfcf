"""One change, line by line: as git would say it, as a person can trust it, and hunk by hunk."""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_folders import Nodes, compare, plant

from podbot.changes.diffs import _headers, hunks, sides
from podbot.changes.diffs.diff import ESCAPED, FileDiff, diff, for_people, merged
from podbot.changes.diffs.text import shown_name, unusual_letters
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.errors import ChangesError, Kind

LINES = st.lists(
    st.sampled_from(
        [b"a", b"b", b"c\r", b"", b"\\ No newline at end of file", b"\xff\x1b[1m", b"d"]
    ),
    max_size=30,
)
TEXTS = st.builds(lambda lines, end: b"\n".join(lines) + end, LINES, st.sampled_from([b"", b"\n"]))


class InMemory:
    """Contents that are nowhere but here."""

    def __init__(self, old: bytes, new: bytes):
        self._old, self._new = old, new

    def open_old(self, change: Change) -> BinaryIO:
        return io.BytesIO(self._old)

    def open_new(self, change: Change) -> BinaryIO:
        return io.BytesIO(self._new)


def state(kind: FileType = FileType.FILE, mode: int = 0o644, **more: object) -> State:
    return replace(State(kind, mode, 0, 0, 0, 0, 0, 0, 0), **more)  # type: ignore[arg-type]


def modified(old: bytes, new: bytes) -> FileDiff:
    """What a change of contents looks like."""
    before, after = state(size=len(old)), state(size=len(new))
    change = Change(ChangeKind.MODIFIED, "/target", "file", before, after)
    return diff(ChangeSet(("/target",), (change,), InMemory(old, new), 0), change)


def noted(change: Change) -> str | None:
    return diff(ChangeSet(("/target",), (change,), InMemory(b"", b""), 0), change).note


# Hunks


@given(TEXTS, TEXTS)
def test_all_hunks_give_the_new_file_and_none_the_old(old: bytes, new: bytes) -> None:
    found = modified(old, new)
    assert merged(found, range(len(found.hunks)), old) == new
    assert merged(found, (), old) == old


@given(TEXTS, st.data())
@settings(max_examples=60)
def test_any_choice_of_hunks_is_what_replacing_just_those_lines_gives(
    text: bytes, data: st.DataObject
) -> None:
    # Edits far apart, each one a hunk of its own; the reference replaces lines by number.
    def block(number: int) -> tuple[list[bytes], list[bytes]]:
        # No line of one is in another, or a diff may see it as moved.
        old, new = ([b"%d %s" % (number, line) for line in data.draw(LINES)] for _ in range(2))
        return old, new

    blocks = [block(number) for number in range(data.draw(st.integers(1, 4)))]
    end = data.draw(st.sampled_from([b"", b"\n"]))

    def spelled(chosen: set[int]) -> bytes:
        parts = [text.replace(b"\n", b"")]
        for number, (before, after) in enumerate(blocks):
            padding = [b"%d -- %d" % (number, line) for line in range(16)]
            lines = after if number in chosen else before
            parts += [*padding[:8], *lines, *padding[8:]]
        return b"\n".join(parts) + end

    old, new = spelled(set()), spelled(set(range(len(blocks))))
    found = modified(old, new)
    changed = [number for number, (before, after) in enumerate(blocks) if before != after]
    assert len(found.hunks) >= len(changed)
    if len(found.hunks) == len(changed):
        chosen = data.draw(st.sets(st.sampled_from(range(len(changed))))) if changed else set()
        assert merged(found, chosen, old) == spelled({changed[number] for number in chosen})


@given(TEXTS, TEXTS)
@settings(max_examples=60)
def test_a_subset_of_hunks_is_what_a_plain_reading_of_the_format_gives(
    old: bytes, new: bytes
) -> None:
    found = modified(old, new)
    chosen = set(range(0, len(found.hunks), 2))
    assert merged(found, chosen, old) == plainly_applied(found, chosen, old)


def plainly_applied(found: FileDiff, chosen: set[int], old: bytes) -> bytes:
    """Line by line as the format says, from the last hunk to the first."""
    lines = re.findall(rb"[^\n]*\n|[^\n]+\Z", old)
    for number in sorted(chosen, reverse=True):
        hunk = found.hunks[number]
        new = [
            line[1:] + (b"" if after.startswith(b"\\") else b"\n")
            for line, after in zip(hunk.lines, [*hunk.lines[1:], b""], strict=True)
            if line[:1] in b" +"
        ]
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        lines[start : start + hunk.old_count] = new
    return b"".join(lines)


@given(TEXTS, TEXTS)
def test_the_counts_of_a_hunk_are_those_of_its_lines(old: bytes, new: bytes) -> None:
    found = modified(old, new)
    for hunk in found.hunks:
        marks = [line[:1] for line in hunk.lines]
        assert hunk.old_count == marks.count(b" ") + marks.count(b"-")
        assert hunk.new_count == marks.count(b" ") + marks.count(b"+")
    total = new.count(b"\n") + (not new.endswith(b"\n") and new != b"")
    before = old.count(b"\n") + (not old.endswith(b"\n") and old != b"")
    assert total - before == found.added - found.removed


def test_hunks_are_those_of_a_unified_diff() -> None:
    old = b"".join(b"%d\n" % number for number in range(1, 31))
    new = old.replace(b"5\n", b"five\n", 1).replace(b"27\n", b"", 1)
    first, second = modified(old, new).hunks
    assert first.header == "@@ -2,7 +2,7 @@"
    assert first.lines == (b" 2", b" 3", b" 4", b"-5", b"+five", b" 6", b" 7", b" 8")
    assert second.header == "@@ -24,7 +24,6 @@"
    assert second.lines == (b" 24", b" 25", b" 26", b"-27", b" 28", b" 29", b" 30")


def test_a_missing_last_line_end_is_told_on_its_own_line() -> None:
    (hunk,) = modified(b"a\nb", b"a\nb\n").hunks
    assert hunk.lines == (b" a", b"-b", hunks.NO_NEWLINE, b"+b")
    (hunk,) = modified(b"", b"x").hunks
    assert (hunk.header, hunk.lines) == ("@@ -0,0 +1 @@", (b"+x", hunks.NO_NEWLINE))
    (hunk,) = modified(b"x\ny\n", b"").hunks
    assert (hunk.header, hunk.lines) == ("@@ -1,2 +0,0 @@", (b"-x", b"-y"))


def test_only_what_differs_of_a_long_file_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = hunks._lines.edits
    monkeypatch.setattr(
        hunks._lines, "edits", lambda old, new: seen.append(len(old)) or real(old, new)
    )
    old = b"".join(b"line %d\n" % number for number in range(5000))
    (hunk,) = modified(old, old.replace(b"line 2500\n", b"other\n")).hunks
    assert hunk.header == "@@ -2498,7 +2498,7 @@"
    assert seen[0] < 60


def test_picking_from_a_file_that_moved_on_is_a_conflict() -> None:
    found = modified(b"a\nb\n", b"a\nc\n")
    with pytest.raises(ChangesError) as error:
        merged(found, [0], b"a\nz\n")
    assert error.value.kind is Kind.CONFLICT
    found = modified(b"a\n", b"b")
    with pytest.raises(ChangesError) as error:
        merged(found, [0], b"a\nmore\n")
    assert error.value.kind is Kind.CONFLICT


def test_picking_a_hunk_that_is_not_there_is_refused() -> None:
    with pytest.raises(ChangesError, match="no hunk 1"):
        merged(modified(b"a\n", b"b\n"), [1], b"a\n")


def test_picking_from_a_file_that_became_a_link_is_refused() -> None:
    change = Change(ChangeKind.REPLACED, "/t", "x", state(), state(FileType.LINK, link="y"))
    found = diff(ChangeSet(("/t",), (change,), InMemory(b"a\n", b""), 0), change)
    assert [hunk.lines for hunk in found.hunks] == [(b"-a", b"+y", hunks.NO_NEWLINE)]
    with pytest.raises(ChangesError) as error:
        merged(found, [0], b"a\n")
    assert error.value.kind is Kind.INVALID


# Headers


PAIRS: dict[str, tuple[Nodes, Nodes]] = {
    "modified": ({b"f": ("file", b"a\n")}, {b"f": ("file", b"b\n")}),
    "added": ({}, {b"d/f": ("file", b"a\n")}),
    "added program": ({}, {b"f": ("program", b"a\n")}),
    "added empty": ({}, {b"f": ("file", b"")}),
    "deleted": ({b"f": ("program", b"a")}, {}),
    "mode": ({b"f": ("file", b"a\n")}, {b"f": ("program", b"a\n")}),
    "mode and contents": ({b"f": ("file", b"a\n")}, {b"f": ("program", b"b\n")}),
    "link turned": ({b"l": ("link", b"a")}, {b"l": ("link", b"b")}),
    "link made": ({}, {b"l": ("link", b"a\nb")}),
    "spaces": ({b" a b ": ("file", b"a\n")}, {b" a b ": ("file", b"b\n")}),
    "odd name": ({}, {b'n\nq"t\tb\\\x01\x7f\xff\xc3\xa4 \a\b\v\f\r': ("file", b"a\n")}),
    "leading dash": ({b"-f": ("file", b"a\n")}, {}),
}


@pytest.mark.parametrize("case", PAIRS)
def test_headers_and_small_hunks_are_those_of_git(case: str, tmp_path: Path) -> None:
    old, new = PAIRS[case]
    (change, *_), changes = _last(compare(plant(tmp_path / "a", old), plant(tmp_path / "b", new)))
    found = diff(changes, change)
    ours = [*(line.encode() for line in found.headers)]
    for hunk in found.hunks:
        ours += [hunk.header.encode(), *hunk.lines]
    assert b"\n".join(ours) == _git_diff(tmp_path)


def _last(changes: ChangeSet) -> tuple[list[Change], ChangeSet]:
    return [change for change in changes if change.type is not FileType.FOLDER], changes


def _git_diff(folder: Path) -> bytes:
    """What git says of folders a and b, without the index."""

    def git(*arguments: str) -> bytes:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": str(folder / "repository"),
        }
        command = ["git", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout

    git("init", "--quiet", "--bare")
    trees = []
    for side in "ab":
        git("--work-tree", str(folder / side), "add", "--all", str(folder / side))
        trees.append(git("write-tree").decode().strip())
    told = git("diff-tree", "-r", "--patch", "--no-renames", *trees)
    return re.sub(rb"(?m)^index .*\n", b"", told).rstrip(b"\n")


def test_a_rename_says_where_from_and_how_much_stayed(tmp_path: Path) -> None:
    before, after = state(size=20), state(size=20, mode=0o755)
    change = Change(ChangeKind.RENAMED, "/t", "new name", before, after, "öld")
    old = b"".join(b"%04d\n" % number for number in range(4))
    contents = InMemory(old, old.replace(b"0002", b"2222"))
    found = diff(ChangeSet(("/t",), (change,), contents, 0), change)
    assert found.headers == (
        'diff --git "a/\\303\\266ld" b/new name',
        "old mode 100644",
        "new mode 100755",
        "similarity index 75%",
        'rename from "\\303\\266ld"',
        "rename to new name",
        '--- "a/\\303\\266ld"',
        "+++ b/new name\t",
    )
    found = diff(ChangeSet(("/t",), (change,), InMemory(old, old), 0), change)
    assert found.similarity == 100
    assert not found.hunks
    assert "rename from öld" in list(for_people(found))


def test_a_large_file_that_was_moved_is_compared_without_holding_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sides, "MAX_BYTES", 100)
    change = Change(ChangeKind.RENAMED, "/t", "b", state(size=200), state(size=200), "a")
    for new, similarity in ((b"x" * 200, 100), (b"y" * 200, 0)):
        found = diff(ChangeSet(("/t",), (change,), InMemory(b"x" * 200, new), 0), change)
        assert (found.similarity, found.hunks) == (similarity, ())
        assert found.note == "large, 200 → 200 bytes"

    class Vanishing(InMemory):
        opened = 0

        def open_old(self, change: Change) -> BinaryIO:
            self.opened += 1
            if self.opened > 1:
                raise FileNotFoundError
            return super().open_old(change)

    contents = Vanishing(b"x" * 200, b"x" * 200)
    assert diff(ChangeSet(("/t",), (change,), contents, 0), change).similarity == 0


def test_names_begin_with_the_position_of_the_target_if_there_are_several() -> None:
    change = Change(ChangeKind.ADDED, "/two", "f", None, state())
    changes = ChangeSet(("/one", "/two"), (change,), InMemory(b"", b"a\n"), 0)
    assert diff(changes, change).headers[-1] == "+++ b/1/f"


@given(st.binary(min_size=1, max_size=12))
def test_a_quoted_name_is_plain_and_can_be_read_back(raw: bytes) -> None:
    spelled = _headers.quoted(os.fsdecode(raw))
    assert spelled.isascii()
    assert spelled.isprintable()
    if spelled.startswith('"'):
        unquoted = re.sub(
            r"\\([0-7]{3}|.)",
            lambda m: chr(int(m[1], 8)) if len(m[1]) == 3 else UNESCAPED.get(m[1], m[1]),
            spelled[1:-1],
        )
        assert unquoted.encode("latin-1") == raw
    else:
        assert os.fsencode(spelled) == raw


UNESCAPED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}


# What is not text


def test_binary_files_are_told_by_a_nul_near_the_beginning_as_git_does() -> None:
    found = modified(b"a\0b", b"text")
    assert found.binary
    assert found.hunks == ()
    assert found.note == "binary, 3 → 4 bytes"
    assert not modified(b"a\n" * 4000 + b"\0", b"a\n").binary


def test_a_nul_does_not_hide_the_lines_of_a_small_text_from_people() -> None:
    found = modified(b"one\ntwo\n", b"one\nevil\0\x1b[2J\n")
    assert found.binary and found.was_text and found.hunks == ()
    *_, note, above, hunk, same, gone, come = for_people(found)
    assert note == "(was text, is binary now; binary, 8 → 14 bytes)"
    assert above == ESCAPED
    assert (hunk, same, gone) == ("@@ -1,2 +1,2 @@", " one", "-two")
    assert come == "+evil\\x00\\x1b[2J"


def test_what_is_no_text_even_without_its_nuls_stays_hidden() -> None:
    for data in (b"\0" * 100, b"\0\xff\xfe", b"\0" + b"a\n" * sides.MAX_ESCAPED):
        found = modified(b"text\n", data)
        assert found.binary and found.was_text and found.escaped == ()
    assert not modified(b"", b"a\0").was_text
    assert not modified(b"a\0", b"b\0").was_text
    assert not modified(b"a\0", b"b").was_text


def test_large_files_are_told_by_size_and_never_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Huge(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None and 0 < size <= sides.BINARY_CHECK
            return super().read(size)

    class HugeContents(InMemory):
        def open_old(self, change: Change) -> BinaryIO:
            return Huge(b"a" * 10_000)

        open_new = open_old

    size = 2 * 1024**3
    change = Change(ChangeKind.MODIFIED, "/t", "f", state(size=size), state(size=size + 1))
    found = diff(ChangeSet(("/t",), (change,), HugeContents(b"", b""), 0), change)
    assert found.note == "large, 2,147,483,648 → 2,147,483,649 bytes"
    assert not found.binary
    change = replace(change, kind=ChangeKind.DELETED, new=None)
    found = diff(ChangeSet(("/t",), (change,), HugeContents(b"", b""), 0), change)
    assert found.note == "large, 2,147,483,648 bytes"


def test_a_file_of_too_many_lines_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "MAX_LINES", 10)
    assert modified(b"\n" * 11, b"\n").note == "large, 11 → 1 bytes"
    assert modified(b"\n" * 10, b"\n").note is None


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end() -> None:
    change = Change(ChangeKind.MODIFIED, "/t", "f", state(size=2), state(size=3))
    contents = InMemory(b"a\nmore\n", b"a\n")
    found = diff(ChangeSet(("/t",), (change,), contents, 0), change)
    assert [hunk.lines for hunk in found.hunks] == [(b" a", b"-more")]


def test_a_file_that_cannot_be_read_gets_a_note(tmp_path: Path) -> None:
    old, new = plant(tmp_path / "a", {b"f": ("file", b"a\n")}), plant(tmp_path / "b", {})
    (new / "f").write_text("b\n")
    changes = compare(old, new)
    (new / "f").unlink()
    (new / "f").symlink_to("/etc/passwd")
    found = diff(changes, changes.changes[0])
    assert found.hunks == ()
    assert "the new contents cannot be read" in str(found.note)


def test_a_note_tells_what_git_has_no_words_for() -> None:
    def change(kind: ChangeKind, old: State | None, new: State | None) -> Change:
        return Change(kind, "/target", "x", old, new, "y" if kind is ChangeKind.HARD_LINK else None)

    fifo, folder = state(FileType.FIFO), state(FileType.FOLDER, 0o755)
    device = state(FileType.DEVICE, rdev=os.makedev(1, 3))
    for case, note in (
        (change(ChangeKind.ADDED, None, folder), "new folder"),
        (change(ChangeKind.DELETED, folder, None), "deleted folder"),
        (change(ChangeKind.REPLACED, folder, folder), "removed and made anew"),
        (change(ChangeKind.REPLACED, state(), fifo), "a file gave way to a FIFO"),
        (change(ChangeKind.SPECIAL, None, fifo), "new FIFO"),
        (
            change(ChangeKind.SPECIAL, device, replace(device, rdev=os.makedev(1, 5))),
            "device 1:3 → 1:5",
        ),
        (change(ChangeKind.HARD_LINK, None, state()), "another name for y"),
        (change(ChangeKind.MODE, state(), state(mode=0o755)), None),
        (change(ChangeKind.MODE, state(), state(mode=0o600)), "mode 0644 → 0600"),
        (change(ChangeKind.MODE, state(), state(mode=0o4755)), "mode 0644 → 4755"),
        (change(ChangeKind.MODE, state(), state(mtime_ns=1)), "another time only"),
        (change(ChangeKind.MODE, state(), state(uid=7)), "owner 0:0 → 7:0"),
        (change(ChangeKind.ADDED, None, state(mode=0o6755)), "mode 6755"),
        (change(ChangeKind.ADDED, None, state(FileType.FOLDER, 0o1777)), "new folder; mode 1777"),
        (change(ChangeKind.ADDED, None, state(FileType.FOLDER, 0o777)), "new folder; mode 0777"),
        (change(ChangeKind.ADDED, None, state(FileType.FOLDER, 0o700)), "new folder"),
        (change(ChangeKind.MODE, folder, replace(folder, mode=0o700)), "mode 0755 → 0700"),
        (
            change(
                ChangeKind.MODE,
                state(xattrs=(("user.a", b"1"), ("user.b", b"1"))),
                state(xattrs=(("user.b", b"2"), ("user.\x1bc", b""))),
            ),
            "attribute user.\\x1bc added; attribute user.a removed; attribute user.b changed",
        ),
    ):
        assert noted(case) == note


# For people


def shown(old: bytes, new: bytes) -> list[str]:
    return list(for_people(modified(old, new)))


def test_people_see_headers_notes_and_hunks() -> None:
    assert shown(b"one\n", b"two\n\tthree") == [
        "diff --git a/file b/file",
        "--- a/file",
        "+++ b/file",
        "@@ -1 +1,2 @@",
        "-one",
        "+two",
        "+\tthree",
        "\\ No newline at end of file",
    ]
    assert shown(b"\0", b"") == ["diff --git a/file b/file", "(binary, 1 → 0 bytes)"]


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        (b"\x1b[2K\x1b]0;t\x07", r"\x1b[2K\x1b]0;t\x07"),
        (b"dos\r", r"dos\r"),
        (b"over\rwritten", r"over\rwritten"),
        ("a\u202eb\u2066c".encode(), r"a\u202eb\u2066c"),
        ("zero\u200bwidth\ufeff".encode(), r"zero\u200bwidth\ufeff"),
        ("tag\U000e0041 vs\U000e0101".encode(), r"tag\U000e0041 vs\U000e0101"),
        (
            "filler\u3164 joiner\u034f blank\u2800".encode(),
            r"filler\u3164 joiner\u034f blank\u2800",
        ),
        ("a\ufe0f ⚠\ufe0f".encode(), "a\\ufe0f ⚠\ufe0f"),
        ("a\u00a0b\u0085c\u2028d".encode(), r"a\u00a0b\u0085c\u2028d"),
        (b"latin \xe4 \xa0", r"latin \xe4 \xa0"),
        (b"\x9b31m \x7f", r"\x9b31m \x7f"),
        ("größe 日本 🎉\ttab".encode(), "größe 日本 🎉\ttab"),
    ],
)
def test_what_would_not_be_seen_is_spelled_out(raw: bytes, seen: str) -> None:
    assert shown(b"", raw + b"\nplain\n")[-2:] == [f"+{seen}", "+plain"]


@given(st.binary(max_size=60), st.text(max_size=20))
def test_nothing_that_moves_the_cursor_is_ever_shown(raw: bytes, text: str) -> None:
    for new in (raw, text.encode("utf-8", "surrogatepass")):
        for line in shown(b"", new):
            assert line.replace("\t", "").isprintable()


def test_a_backslash_or_a_blank_in_a_name_cannot_pose_as_something_else() -> None:
    assert shown_name("a\\x1b") == "a\\\\x1b"
    assert shown_name("a\x1b") == "a\\x1b"
    assert shown_name("a\\n") != shown_name("a\n")
    assert shown_name(" a b ") == "\\x20a b\\x20"
    assert shown_name(" ") == "\\x20"
    assert shown_name("") == ""


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        ("src/p\u0430yment.py", ["U+0430"]),
        ("\u0440\u0430\u0443.py", ["U+0440", "U+0430", "U+0443"]),
        ("\u03bfpen.sh", ["U+03BF"]),
        ("etc\u2215passwd", ["U+2215"]),
        ("etc\u2044passwd", ["U+2044"]),
        ("\uff0e\uff0e\uff0fup", ["U+FF0E", "U+FF0F"]),
        ("\u05d0\u05d1.txt", ["U+05D0", "U+05D1"]),
        ("\u0627.sh", ["U+0627"]),
        ("\uff41bc", ["U+FF41"]),
    ],
)
def test_letters_that_look_like_others_are_found(name: str, letters: list[str]) -> None:
    assert unusual_letters(name) == letters


@pytest.mark.parametrize(
    "name",
    ["plain.py", "caf\xe9/na\xefve.txt", "\u0434\u043e\u043a\u0443\u043c\u0435\u043d\u0442.txt",
     "src/\u03bb\u03cc\u03b3\u03bf\u03c2.md", "\u65e5\u672c\u8a9e\u3067\u3059.txt", "x_\u0436",
     "\u03b1.py", "e\u0301t\u00e9", "\U0001f600.png", "\udcff"],
)  # fmt: skip
def test_ordinary_names_are_not_marked(name: str) -> None:
    assert unusual_letters(name) == []


def test_names_are_spelled_out_for_people_and_stay_readable() -> None:
    change = Change(ChangeKind.ADDED, "/t", "ä\n\x1b[31m\udcff\u202e\t", None, state())
    changes = ChangeSet(("/t",), (change,), InMemory(b"", b"x\n"), 0)
    lines = list(for_people(diff(changes, change)))
    assert lines[0] == r"diff --git a/ä\n\x1b[31m\xff\u202e\t b/ä\n\x1b[31m\xff\u202e\t"
    assert lines[1] == "new file mode 100644"


@pytest.fixture
def special(tmp_path: Path) -> Iterator[ChangeSet]:
    old, new = plant(tmp_path / "a", {}), plant(tmp_path / "b", {})
    os.mkfifo(new / "pipe")
    yield compare(old, new)


def test_a_fifo_is_never_opened(special: ChangeSet) -> None:
    (change,) = special
    assert change.new is not None
    assert stat.S_IMODE(change.new.mode) == change.new.mode
    assert list(for_people(diff(special, change))) == ["diff --git a/pipe b/pipe", "(new FIFO)"]


def test_the_parts_of_a_hunk_are_the_hunk() -> None:
    """Whatever is chosen of the parts: it is a text that has these edits and no others."""
    old = b"".join(b"%d\n" % n for n in range(40))
    new = old.replace(b"5\n", b"five\n", 1).replace(b"8\n9\n", b"", 1).replace(b"12\n", b"12\nx\n")
    new = new.removesuffix(b"\n")
    found = hunks.hunks(old, new)
    pieces = [
        (number, part)
        for number, hunk in enumerate(found)
        for part, _ in enumerate(hunks.parts(hunk))
    ]
    assert len(pieces) > len(found)
    assert hunks.merged(found, pieces, old) == new
    assert hunks.merged(found, (), old) == old
    for hunk in found:
        assert tuple(line for part in hunks.parts(hunk) for line in part.lines) == hunk.lines
    one_by_one = [hunks.merged(found, [piece], old) for piece in pieces]
    assert len(set(one_by_one)) == len(pieces)
    assert all(len(hunks.hunks(old, text)) == 1 for text in one_by_one)
