"""Parts of the guest that a sandbox on a good host never reaches, tried one by one."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podbot.sandbox import interpreter
from podbot.sandbox.guest import globs, patterns, refusals, ripgrep, spawning, syscalls, trees
from podbot.sandbox.guest.evaluations import Evaluation


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_text("inside")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "in").symlink_to("sub")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def without_openat2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls.LIBC, "has_openat2", False)


def refused_with(folder: int, path: str) -> int | None:
    try:
        os.close(syscalls.open_beneath(folder, path, os.O_RDONLY, 0))
    except OSError as error:
        return error.errno
    return None


@pytest.mark.usefixtures("without_openat2")
def test_without_openat2_the_walk_follows_no_link_and_no_dots(folder: int) -> None:
    assert refused_with(folder, "sub/file") is None
    assert refused_with(folder, ".") is None
    assert refused_with(folder, "out/passwd") in (errno.ELOOP, errno.ENOTDIR)
    assert refused_with(folder, "in/file") in (errno.ELOOP, errno.ENOTDIR)
    assert refused_with(folder, "../x") == errno.EXDEV
    assert refused_with(folder, "out") == errno.ELOOP


def test_a_filter_that_forbids_openat2_is_noticed(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> int:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(syscalls.LIBC, "openat2", forbidden)
    monkeypatch.setattr(syscalls.LIBC, "has_openat2", True)
    assert refused_with(folder, "sub/file") is None
    assert syscalls.LIBC.has_openat2 is False


def test_openat2_lets_links_stay_inside(folder: int) -> None:
    assert refused_with(folder, "in/file") is None
    assert refused_with(folder, "out/passwd") == errno.EXDEV


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, "disk_full"), (errno.EMFILE, "out_of_descriptors"), (errno.EIO, "io")],
)
def test_an_errno_becomes_a_kind(number: int, kind: str) -> None:
    found = refusals.refused(OSError(number, "x"), "the thing")
    assert found.kind == kind
    assert found.message.startswith("the thing: ")


def test_a_program_is_looked_for_as_a_shell_would(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(refusals.Refused, match="not executable"):
        spawning.find_program("plain", str(tmp_path))
    with pytest.raises(refusals.Refused, match="no such command"):
        spawning.find_program("missing", str(tmp_path))
    assert spawning.find_program("sh", f"{tmp_path}:/bin") == "/bin/sh"
    assert spawning.find_program("./x", "") == "./x"


# What ripgrep may serve


SAMPLES = [
    "", "a", "ab", "foo bar", "Needle", "n33dle", "x_y", "äöü", "aéb", "  tab\there", "12", "K",
    "\u017f", "\u212a", "end.", "a.b", "a\rb", "日本", "foo  bar", "-", "[x]", "0", "ab" * 40,
]  # fmt: skip

PATTERNS = [
    "a", "a.b", "^a", "b$", r"\d+", r"\w{2,}", r"\s", r"[a-f]+", "[^a]", "(foo|bar)", "foo.*bar",
    r"\bfoo\b", r"\.", "n(?:33|ee)dle", "é", "[äö]", "x?y", "a{2}", r"\S+\d", "(?i)needle", "k",
    "s", r"[\d_]", "(?P<name>a)b", r"\Afoo", r"bar\Z", "日.", "[^x]y", "a+?b",
]  # fmt: skip


@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_ripgrep_finds_at_least_what_python_finds(
    pattern: str, ignore_case: bool, tmp_path: Path
) -> None:
    rg = interpreter.ripgrep()
    assert rg is not None, "ripgrep comes with podbot"
    translated = patterns.rg_pattern(pattern, ignore_case)
    if translated is None:
        return  # Python alone serves this one
    text, check, _ = translated
    (tmp_path / "file").write_bytes("\n".join(SAMPLES).encode() + b"\nbad \xff\xfe byte a\xe9b\n")
    done = subprocess.run(
        [rg, *ripgrep.RG_FLAGS, *ripgrep.TEXT_FLAGS, f"--regexp={text}", "./"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    rows = ripgrep.parse_rg(done.stdout, complete=True)
    lines = (tmp_path / "file").read_bytes().split(b"\n")[:-1]
    expression = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    wanted = {
        number
        for number, line in enumerate(lines, 1)
        if expression.search(line.decode("utf-8", "surrogateescape"))
    }
    found = {number: line for _, number, line in rows}
    assert wanted <= found.keys()
    for number in found.keys() - wanted:  # what Python must sort out, and will
        assert check == "all" or (check == "wide" and not found[number].isascii())


@pytest.mark.parametrize(
    "pattern", ["(?=a)", "(a)\\1", "(?a)\\w", "(?-i:x)", "a{1001}", "\n", "[^\\d]", "(?<!a)b"]
)
def test_patterns_the_engines_may_read_differently_go_to_python(pattern: str) -> None:
    assert patterns.rg_pattern(pattern, False) is None


@pytest.mark.parametrize("pattern", ["ä", "[a-z]", "[ks]"])
def test_odd_case_folding_goes_to_python(pattern: str) -> None:
    assert patterns.rg_pattern(pattern, True) is None


@pytest.mark.parametrize(
    ("pattern", "watched"),
    [
        ("needle", True), ("^needle$", True), (r"\w+foo\s*", True), ("foo|bar", True),
        ("[a-z]{3}", True), (r"\w+\(", False), ("foo|b", False), ("ab", False),
        ("needle.", False), ("[^a]needle", False), (r"needle\D", False), (r"needle\W*", False),
        (r"needle\S", False), ("needle\0", False), ("needle[\0a]", False), ("needle[\0-\t]", False),
    ],
)  # fmt: skip
def test_rg_watches_for_binary_files_where_no_nul_can_match(pattern: str, watched: bool) -> None:
    translated = patterns.rg_pattern(pattern, False)
    assert translated is not None
    assert translated[2] is watched


def test_output_that_was_cut_ends_at_its_last_whole_line() -> None:
    data = b"./a\x001:one\n./b\x0022:tw"
    assert ripgrep.parse_rg(data, complete=False) == [("./a", 1, "one")]
    assert ripgrep.parse_rg(data, complete=True)[1] == ("./b", 22, "tw")


# Globs


@given(st.text("ab*?[]!-", max_size=12), st.text("ab", max_size=12))
def test_a_name_pattern_agrees_with_a_regular_expression(pattern: str, name: str) -> None:
    parts = []
    rest = pattern
    while rest:
        if rest[0] == "[" and (end := rest.find("]", 2 + (rest[1:2] == "!"))) > 0:
            parts.append(("set", rest[1:end]))
            rest = rest[end + 1 :]
        else:
            parts.append(("char", rest[0]))
            rest = rest[1:]

    def matches(index: int, left: str) -> bool:
        if index == len(parts):
            return not left
        kind, text = parts[index]
        if kind == "char" and text == "*":
            return any(matches(index + 1, left[skip:]) for skip in range(len(left) + 1))
        if not left:
            return False
        fits = globs.one_of(text)(left[0]) if kind == "set" else text in ("?", left[0])
        return fits and matches(index + 1, left[1:])

    assert globs.NamePattern(pattern).matches(name) == matches(0, name)


# Walking


def test_a_walk_gives_entries_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for path in ("a/b/c", "a.x", "a/b.c", "b"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        names = [name for name, _, _ in trees.walk(fd)]
    finally:
        os.close(fd)
    assert names == sorted(names, key=lambda name: name.split("/"))


def test_a_folder_moved_away_ends_the_walk(tmp_path: Path) -> None:
    depth = trees.OPEN_FOLDERS + 5
    deepest = tmp_path
    for _ in range(depth):
        deepest = deepest / "d"
        deepest.mkdir()
        (deepest / "z").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        walking = trees.walk(fd)
        for _ in range(depth):
            next(walking)
        (tmp_path / "d" / "d").rename(tmp_path / "elsewhere")
        assert len(list(walking)) < 2 * depth  # it ends, and does not leave the tree
    finally:
        os.close(fd)


def test_a_fork_that_was_stopped_just_when_it_got_its_order_is_killed() -> None:
    """A signal may reach it late: it was seen to wait, and never begins."""
    later: list[Callable[[], object]] = []
    killed: list[int] = []
    loop = SimpleNamespace(after=lambda _, action: later.append(action) or [action])
    evaluation: Any = object.__new__(Evaluation)
    evaluation.guest, evaluation.status = SimpleNamespace(loop=loop), None
    evaluation.kill = lambda: killed.append(fork.pid)
    with subprocess.Popen(["sleep", "1000"]) as fork:
        try:
            evaluation._see_it_begin(fork.pid)
            later.pop()()
            assert killed == [] and len(later) == 1, "it may be slow: looked at again"
            fork.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, fork.pid, os.WSTOPPED | os.WNOWAIT)
            later.pop()()
            assert killed == [fork.pid] and later == []
        finally:
            fork.kill()
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as fork:
        try:
            killed.clear()
            evaluation._see_it_begin(fork.pid)
            later.pop()()
            assert killed == [] and later == [], "it has begun"
        finally:
            fork.kill()
