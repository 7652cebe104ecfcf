"""`glob` and `grep`, compared with what Python itself would find."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.errors import Kind
from podbot.sandbox import Sandbox
from podbot.testing.base import LEISURELY, SOON, Base, file_refused, refused

NAMES = ["a", "b", ".h", "a.py", "b.py", "ab.txt", "[a]", "a b"]
PARTS = ["*", "**", "?", "*.py", "a*", "[ab]", "[!a]*", "?.py", ".*", "a", "b", "[[]a]", "**.py"]

Tree = dict[str, bytes]


def trees(content: st.SearchStrategy[bytes]) -> st.SearchStrategy[Tree]:
    """Files by path; a path below another file is left out."""
    paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
    return st.dictionaries(paths, content, max_size=8).map(
        lambda files: {
            path: data
            for path, data in files.items()
            if not any(path.startswith(other + "/") for other in files)
        }
    )


def plant(sandbox: Sandbox, tree: Tree) -> None:
    """Make this tree, and nothing else, the content of ``tree/``."""
    sandbox.remove("tree", recursive=True, missing_ok=True)
    sandbox.mkdir("tree")
    for path, data in tree.items():
        sandbox.write(f"tree/{path}", data)


def entries(tree: Tree) -> set[str]:
    """The paths of files and of the folders that hold them."""
    found = set(tree)
    for path in tree:
        parts = path.split("/")
        found |= {"/".join(parts[:size]) for size in range(1, len(parts))}
    return found


def fits(pattern: list[str], path: list[str]) -> bool:
    """What a glob means, in the plainest way."""
    if not pattern:
        return not path
    if pattern == ["**"]:
        return bool(path)
    if pattern[0] == "**":
        return any(fits(pattern[1:], path[start:]) for start in range(len(path)))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and fits(pattern[1:], path[1:])


def in_order(paths: list[str] | set[str]) -> list[str]:
    """Sorted so that a folder's entries follow it."""
    return sorted(paths, key=lambda path: path.split("/"))


class SearchTests(Base):
    """Finding names and lines."""

    # Names

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.py", ["top.py"]),
            ("**/*.py", [".hid/x.py", "src/deep/y.py", "src/x.py", "top.py"]),
            ("src/*.py", ["src/x.py"]),
            ("src/**", ["src/deep", "src/deep/y.py", "src/x.py"]),
            ("**/deep", ["src/deep"]),
            ("*", [".hid", "link", "note [1].txt", "src", "top.py"]),
            ("src/**/y.py", ["src/deep/y.py"]),
            ("**/src/**/*.py", ["src/deep/y.py", "src/x.py"]),
            ("?op.py", ["top.py"]),
            ("[st]*", ["src", "top.py"]),
            ("[!st]*", [".hid", "link", "note [1].txt"]),
            ("note [[]1].txt", ["note [1].txt"]),
            ("top.PY", []),
            ("./src/x.py", ["src/x.py"]),
            ("link/*", []),
            ("[z-a]", []),
        ],
    )
    def test_a_glob_finds(self, sandbox: Sandbox, pattern: str, found: list[str]) -> None:
        for path in ("top.py", "src/x.py", "src/deep/y.py", ".hid/x.py", "note [1].txt"):
            sandbox.write(path, b"")
        sandbox.symlink("link", "src")
        assert sandbox.glob(pattern) == found

    def test_a_glob_spells_paths_as_it_was_asked(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/sub/file.py", b"")
        root = sandbox.workdir
        assert sandbox.glob("**/*.py", "folder") == ["folder/sub/file.py"]
        assert sandbox.glob("*", "folder/") == ["folder/sub"]
        assert sandbox.glob("**/*.py", root) == [f"{root}/folder/sub/file.py"]

    def test_a_glob_keeps_the_order_of_a_listing(self, sandbox: Sandbox) -> None:
        for path in ("a.py/x", "a/x", "a b/x", "a/b.c", "a/b/x"):
            sandbox.write(path, b"")
        listed = [entry.path for entry in sandbox.list(recursive=True)]
        assert sandbox.glob("**") == listed == in_order(listed)

    def test_globs_agree_with_what_they_mean(self, sandbox: Sandbox) -> None:
        patterns = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4)

        @settings(LEISURELY, max_examples=30)
        @given(trees(st.just(b"")), st.lists(patterns, min_size=1, max_size=6))
        def check(tree: Tree, several: list[list[str]]) -> None:
            plant(sandbox, tree)
            for pattern in several:
                expected = {path for path in entries(tree) if fits(pattern, path.split("/"))}
                found = sandbox.glob("/".join(pattern), "tree")
                assert found == [f"tree/{path}" for path in in_order(expected)]

        check()

    def test_a_glob_that_names_nothing_below_is_refused(self, sandbox: Sandbox) -> None:
        for pattern in ("", "..", "../*", "a/../b"):
            with refused(Kind.BAD_PATTERN):
                sandbox.glob(pattern)
        sandbox.write("file", b"")
        with file_refused(Kind.NOT_FOUND):
            sandbox.glob("*", "missing")
        with file_refused(Kind.NOT_DIRECTORY):
            sandbox.glob("*", "file")

    def test_a_glob_stops_at_its_limit(self, sandbox: Sandbox) -> None:
        for number in range(4):
            sandbox.write(f"{number}", b"")
        assert len(sandbox.glob("*", max_entries=4)) == 4
        with file_refused(Kind.TOO_LARGE):
            sandbox.glob("*", max_entries=3)

    def test_a_glob_cannot_run_away(self, sandbox: Sandbox) -> None:
        sandbox.write("a" * 200, b"")
        sandbox.write("/".join("a" * 40), b"")
        assert sandbox.glob("*a" * 60 + "b") == []
        assert sandbox.glob("**/a/" * 20 + "b") == []

    # Lines

    def test_grep_finds_lines_in_order(self, sandbox: Sandbox) -> None:
        sandbox.write("b/file", b"no\nneedle one\nno\nneedle two\n")
        sandbox.write("b.txt", b"needle")
        sandbox.write("a", b"a needle, without end")
        found = sandbox.grep("needle")
        assert [(match.path, match.line_number, match.line) for match in found.matches] == [
            ("a", 1, "a needle, without end"),
            ("b/file", 2, "needle one"),
            ("b/file", 4, "needle two"),
            ("b.txt", 1, "needle"),
        ]
        assert not found.truncated

    def test_grep_searches_hidden_and_ignored_files_but_not_through_links(
        self, sandbox: Sandbox
    ) -> None:
        sandbox.write(".gitignore", b"*.log\nignored/\n")
        sandbox.write(".ignore", b"*\n")
        for path in ("a.log", "ignored/file", ".hidden", ".git/config"):
            sandbox.write(path, b"needle\n")
        sandbox.symlink("link", "a.log")
        sandbox.symlink("folder", "ignored")
        found = {match.path for match in sandbox.grep("needle").matches}
        assert found == {"a.log", "ignored/file", ".hidden", ".git/config"}

    def test_grep_leaves_binary_files_out(self, sandbox: Sandbox) -> None:
        sandbox.write("binary", b"needle\n\0needle\n")
        sandbox.write("late", b"needle\n" + b"x" * 8192 + b"\0\nneedle\n")
        sandbox.write("text", b"\xff\xfeneedle\n")
        found = [(match.path, match.line_number) for match in sandbox.grep("needle").matches]
        assert found == [("late", 1), ("late", 3), ("text", 1)]
        assert sandbox.grep("needle", "binary").matches == ()

    def test_grep_takes_a_file_or_a_folder_and_spells_it_as_asked(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/file", b"needle\n")
        root = sandbox.workdir
        for path, shown in (
            ("folder/file", "folder/file"),
            ("folder", "folder/file"),
            ("folder/", "folder/file"),
            (f"{root}/folder", f"{root}/folder/file"),
        ):
            assert [match.path for match in sandbox.grep("needle", path).matches] == [shown]

    def test_grep_can_be_narrowed_by_a_glob(self, sandbox: Sandbox) -> None:
        for path in ("x.py", "sub/y.py", "sub/deep/z.py", "sub/n.txt"):
            sandbox.write(path, b"needle\n")

        def found(glob: str, path: str = ".") -> list[str]:
            return [match.path for match in sandbox.grep("needle", path, glob=glob).matches]

        assert found("*.py") == ["x.py"]
        assert found("**/*.py") == ["sub/deep/z.py", "sub/y.py", "x.py"]
        assert found("*.py", "sub") == ["sub/y.py"]
        assert found("sub/**") == ["sub/deep/z.py", "sub/n.txt", "sub/y.py"]
        assert found("[xn]*") == ["x.py"]
        assert found("nothing") == []

    def test_grep_ignores_case_when_told_to(self, sandbox: Sandbox) -> None:
        sandbox.write("file", "Needle\nnEEDLE\nÄpfel\näPFEL\n")
        assert len(sandbox.grep("needle").matches) == 0
        assert len(sandbox.grep("needle", ignore_case=True).matches) == 2
        assert len(sandbox.grep("äpfel", ignore_case=True).matches) == 2
        assert len(sandbox.grep("(?i)needle").matches) == 2
        assert len(sandbox.grep("(?i:n)eedle").matches) == 1

    def test_grep_says_when_there_was_more(self, sandbox: Sandbox) -> None:
        sandbox.write("a", b"needle\n" * 5)
        sandbox.write("b", b"needle\n" * 5)
        whole = sandbox.grep("needle", max_matches=10)
        assert (len(whole.matches), whole.truncated) == (10, False)
        cut = sandbox.grep("needle", max_matches=7)
        assert (len(cut.matches), cut.truncated) == (7, True)
        assert cut.matches == whole.matches[:7]

    def test_grep_gives_lines_without_their_ends(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"needle dos\r\nneedle unix\nneedle \xe9\xff\n")
        lines = [match.line for match in sandbox.grep("needle").matches]
        assert lines[:2] == ["needle dos", "needle unix"]
        assert lines[2].encode("utf-8", "surrogateescape") == b"needle \xe9\xff"

    def test_grep_agrees_with_python(self, sandbox: Sandbox) -> None:
        atoms = [b"a", b"ab", b"_1", b" ", b"\t", b"\xff", b"\r", b"\n", b"\n", b"K", b"."]
        letters = ["é", "ß", "\u017f", "İ", "٣", "\u2028", "\x85", "\u212a"]
        content = st.lists(st.sampled_from(atoms + [letter.encode() for letter in letters])).map(
            b"".join
        )
        patterns = st.sampled_from(
            [
                "a", "ab|b", "^a", "a$", "^$", r"\bab\b", r"\d", r"\D", r"\w+", r"\W", r"\s", r"\S",
                ".", "^.$", "^..$", "[^a]", "[a-c]+", "a{2,}", "(a)(b)", r"(a)\1", "(?=a)a",
                "(?<!a)b", "é", "[é٣]", "k", "s", "i", r"\.", ".*", "a?", r"\Aa", r"b\Z", "(?i)AB",
                "[^\\W\\d]", "(?s).a", "(?m)^a", "a.b", r"\x61", "ß",
            ]
        )  # fmt: skip

        @settings(LEISURELY, max_examples=15)
        @given(
            trees(content),
            st.lists(st.tuples(patterns, st.booleans()), min_size=1, max_size=4),
        )
        def check(tree: Tree, searches: list[tuple[str, bool]]) -> None:
            plant(sandbox, tree)
            for pattern, ignore_case in searches:
                found = sandbox.grep(pattern, "tree", ignore_case=ignore_case)
                expected = expected_lines(tree, pattern, ignore_case)
                assert [(m.path, m.line_number, m.line) for m in found.matches] == expected

        check()

    def test_a_bad_pattern_is_refused(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        for pattern in ("(", "[", "a{2,1}", "(?P<n>a)(?P<n>b)", "*"):
            with refused(Kind.BAD_PATTERN):
                sandbox.grep(pattern)
        with refused(Kind.BAD_PATTERN):
            sandbox.grep("x", glob="../*")
        with file_refused(Kind.NOT_FOUND):
            sandbox.grep("x", "missing")

    @pytest.mark.parametrize("pattern", ["(a+)+$", "^(?=(a+)+$)x", r"((a+)+)\1$"])
    def test_a_runaway_pattern_is_cut_by_time(self, sandbox: Sandbox, pattern: str) -> None:
        sandbox.write("file", b"a" * 60 + b"b\n")
        for path in (".", "file"):
            try:
                assert sandbox.grep(pattern, path, timeout=0.5).matches == ()
            except Exception as error:
                assert getattr(error, "kind", None) is Kind.TIMEOUT
        assert len(sandbox.grep("a", ".").matches) == 1

    def test_very_long_lines_do_not_break_the_sandbox(self, sandbox: Sandbox) -> None:
        for number in range(36):
            sandbox.write(f"{number}", b"needle" + b"x" * 2_000_000 + b"\n")
        for pattern in ("needle", "(?=needle)n"):
            found = sandbox.grep(pattern, timeout=SOON)
            assert len(found.matches) == 36 or found.truncated
        assert sandbox.read("1", size=6) == b"needle"

    # The newest

    def test_the_newest_files_come_first_and_all_are_counted(self, sandbox: Sandbox) -> None:
        for name in ("a", "deep/b", "c"):
            sandbox.write(f"new/{name}", name)
        sandbox.symlink("new/link", "c")
        found = sandbox.newest("new", max_files=2)
        assert (len(found.files), found.total, found.complete) == (2, 3, True)
        assert {each.path for each in sandbox.newest("new").files} == {
            "new/a", "new/c", "new/deep/b",
        }  # fmt: skip
        assert all(each.kind == "file" for each in found.files)

    def test_the_newest_of_very_many_files_are_looked_for_up_to_a_bound(
        self, sandbox: Sandbox
    ) -> None:
        for number in range(120):
            sandbox.write(f"crowd/{number}", "x")
        found = sandbox.newest("crowd", max_entries=110)
        assert not found.complete and found.total == 110
        sandbox.write("crowd/last", "x")
        found = sandbox.newest("crowd", max_files=3)
        assert found.complete and found.total == 121 and len(found.files) == 3
        with file_refused(Kind.NOT_FOUND):
            sandbox.newest("missing")
        with file_refused(Kind.INVALID):
            sandbox.newest(".", max_files=-1)


def expected_lines(tree: Tree, pattern: str, ignore_case: bool) -> list[tuple[str, int, str]]:
    """What Python would find in these files."""
    search = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
    found = []
    for path in in_order(set(tree)):
        lines = tree[path].decode("utf-8", "surrogateescape").split("\n")
        if not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, 1):
            if search(line):
                found.append((f"tree/{path}", number, line.removesuffix("\r")))
    return found
