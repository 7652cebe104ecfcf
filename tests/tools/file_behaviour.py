"""What the seven file tools do and refuse, on every backend."""

from __future__ import annotations

import pytest
from workplace import COMMAND_TOOLS, FILE_TOOLS, Place, SectionTests

from podbot.prompt import Deadline
from podbot.tools._file_tools import READ_BYTES

ESCAPES = [
    "../x",
    "a/../../x",
    "..",
    "/etc/passwd",
    "/workspace/../etc/passwd",
    "/workspacex/a",
    "./a",
    "a/./b",
]
NO_NAMES = ["é.txt", "a\nb", "a\0b", "a" * 81, "/".join("a" * 17), "\x7f", "a" * 10_000_000]


class FileTests(SectionTests):
    """The suite, its paths, and each file tool."""

    # The suite

    def test_the_tools_have_the_names_of_the_suite(self, place: Place) -> None:
        names = [tool.name for tool in place.prompt.tools]
        assert names == FILE_TOOLS + (COMMAND_TOOLS if self.commands else [])

    def test_the_schemas_are_those_of_every_backend(self, place: Place) -> None:
        schemas = {tool.name: sorted(tool.parameters) for tool in place.prompt.tools}
        assert schemas["ls"] == ["path"]
        assert schemas["read_file"] == ["file_path", "limit", "offset"]
        assert schemas["write_file"] == ["content", "file_path"]
        assert schemas["edit_file"] == ["file_path", "new_string", "old_string", "replace_all"]
        assert schemas["glob"] == ["path", "pattern"]
        assert schemas["grep"] == ["glob", "path", "pattern"]
        assert schemas["rm"] == ["path"]
        if self.commands:
            assert schemas["shell_execute"] == [
                "capture_output", "command", "cwd", "env", "stdin", "timeout_seconds",
            ]  # fmt: skip
            assert schemas["evaluate_python"] == ["code", "globals", "reads", "writes"]
        assert all(text for tool in place.prompt.tools for text in tool.parameters.values())

    def test_the_prompt_tells_the_limits(self, place: Place) -> None:
        text = " ".join(place.prompt.render(session=place.session).text.split())
        assert "/workspace" in text and "48,000" in text and "2,000" in text
        assert ("120 seconds" in text) == self.commands

    def test_nothing_is_opened_before_the_first_call(self, place: Place) -> None:
        place.prompt.render(session=place.session)
        assert place.section.sandbox is None
        assert place.workspace is None
        place.ok("ls")
        assert place.section.sandbox is not None
        assert place.workspace is not None

    def test_bad_arguments_open_nothing(self, place: Place) -> None:
        place.fails("read_file", file_path="../x")
        place.fails("ls", paths="x")
        assert place.section.sandbox is None

    # Paths

    @pytest.mark.parametrize("path", ["a/b.txt", "/workspace/a/b.txt", "a//b.txt", "a/b.txt/"])
    def test_a_path_is_relative_or_below_workspace(self, place: Place, path: str) -> None:
        place.ok("write_file", file_path="a/b.txt", content="text")
        assert place.ok("read_file", file_path=path).content == "   1 | text"

    def test_what_commands_call_the_workspace_is_a_path_too(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="text")
        workdir = place.sandbox.workdir
        assert place.ok("read_file", file_path=f"{workdir}/a.txt").total_lines == 1

    @pytest.mark.parametrize("path", ["/", "", ".", "/workspace", "/workspace/", None])
    def test_the_workspace_itself_has_these_names(self, place: Place, path: str | None) -> None:
        place.ok("write_file", file_path="a.txt", content="")
        assert [str(entry.path) for entry in place.ok("ls", path=path).entries] == ["a.txt"]

    @pytest.mark.parametrize("path", [*ESCAPES, *NO_NAMES], ids=lambda path: ascii(path[:30]))
    def test_no_tool_takes_a_path_out_of_the_workspace(self, place: Place, path: str) -> None:
        calls: list[tuple[str, dict[str, object]]] = [
            ("ls", {"path": path}),
            ("read_file", {"file_path": path}),
            ("write_file", {"file_path": path, "content": "x"}),
            ("edit_file", {"file_path": path, "old_string": "a", "new_string": "b"}),
            ("glob", {"pattern": "*", "path": path}),
            ("grep", {"pattern": "x", "path": path}),
            ("rm", {"path": path}),
        ]
        if self.commands:
            calls.append(("shell_execute", {"command": ["true"], "cwd": path}))
        for name, arguments in calls:
            message = place.fails(name, **arguments)
            assert "remedy:" in message or "\n" in message or ":" in message
            assert len(message) < 1000
        assert place.section.sandbox is None  # nobody had to ask the sandbox

    @pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file", "rm"])
    def test_the_workspace_itself_is_no_file(self, place: Place, name: str) -> None:
        arguments: dict[str, object] = {
            "read_file": {"file_path": "/"},
            "write_file": {"file_path": "/", "content": ""},
            "edit_file": {"file_path": "/", "old_string": "a", "new_string": "b"},
            "rm": {"path": "/"},
        }[name]  # type: ignore[assignment]  # one of the four
        assert "the workspace itself" in place.fails(name, **arguments)  # type: ignore[arg-type]

    def test_a_link_that_leads_out_leads_nowhere(self, place: Place) -> None:
        place.sandbox.symlink("out", "/etc")
        place.sandbox.symlink("passwd", "/etc/passwd")
        place.sandbox.symlink("up", "..")
        for name, arguments in (
            ("read_file", {"file_path": "passwd"}),
            ("read_file", {"file_path": "out/passwd"}),
            ("edit_file", {"file_path": "passwd", "old_string": "root", "new_string": "x"}),
            ("write_file", {"file_path": "out/x", "content": "x"}),
            ("write_file", {"file_path": "up/x", "content": "x"}),
            ("ls", {"path": "out"}),
            ("ls", {"path": "up"}),
            ("glob", {"pattern": "*", "path": "out"}),
            ("grep", {"pattern": "root", "path": "passwd"}),
            ("rm", {"path": "out/passwd"}),
        ):
            assert "out of the workspace" in place.fails(name, **arguments), (name, arguments)
        assert place.ok("glob", pattern="out/**").matches == ()
        assert place.ok("grep", pattern="root").matches == ()

    def test_a_link_within_the_workspace_is_followed(self, place: Place) -> None:
        place.ok("write_file", file_path="a/b.txt", content="text")
        place.sandbox.symlink("short", "a")
        assert place.ok("read_file", file_path="short/b.txt").content == "   1 | text"

    # ls

    def test_ls_tells_kind_size_version_and_time(self, place: Place) -> None:
        place.ok("write_file", file_path="b/c.txt", content="x")
        place.ok("write_file", file_path="a.txt", content="é")
        place.sandbox.symlink("link", "nowhere")
        entries = place.ok("ls").entries
        told = [(str(e.path), e.kind, e.version) for e in entries]
        assert told == [("a.txt", "file", 1), ("b", "directory", None), ("link", "link", None)]
        assert entries[0].size_bytes == 2
        assert entries[0].updated_at.tzinfo is not None
        place.ok("edit_file", file_path="a.txt", old_string="é", new_string="e")
        assert place.ok("ls").entries[0].version == 2

    def test_ls_of_a_folder_names_its_entries_from_the_workspace_on(self, place: Place) -> None:
        place.ok("write_file", file_path="b/c.txt", content="x")
        result = place.call("ls", path="/workspace/b")
        assert [str(entry.path) for entry in result.value.entries] == ["b/c.txt"]
        assert "b/c.txt  1 bytes" in result.render()

    def test_ls_of_a_file_is_an_error_and_of_a_missing_folder_empty(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        assert "read_file" in place.fails("ls", path="a.txt")
        assert place.ok("ls", path="missing").entries == ()

    # read_file

    def test_read_file_numbers_lines(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="one\n\nthree")
        found = place.ok("read_file", file_path="a.txt")
        assert found.content == "   1 | one\n   2 | \n   3 | three"
        assert (found.offset, found.limit, found.total_lines) == (0, 3, 3)

    def test_read_file_gives_a_part(self, place: Place) -> None:
        place.write("a.txt", "".join(f"line {n}\n" for n in range(1, 12_001)))
        result = place.call("read_file", file_path="a.txt", offset=10_000, limit=2)
        assert result.value.content == "10001 | line 10001\n10002 | line 10002"
        assert (result.value.offset, result.value.limit) == (10_000, 2)
        assert result.value.total_lines == 12_000
        assert "offset=10002" in result.message
        assert place.ok("read_file", file_path="a.txt").limit == 2000
        assert place.ok("read_file", file_path="a.txt", offset=12_000).content == ""

    @pytest.mark.parametrize(
        "arguments", [{"offset": -1}, {"limit": 0}, {"limit": -5}, {"limit": 2001}]
    )
    def test_read_file_refuses_what_is_no_range(
        self, place: Place, arguments: dict[str, int]
    ) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        assert next(iter(arguments)) in place.fails("read_file", file_path="a.txt", **arguments)

    @pytest.mark.parametrize(
        ("data", "said"),
        [(b"a\0b", "binary"), (b"\xff\xfe", "binary"), (b"caf\xe9\n", "not UTF-8")],
    )
    def test_read_file_says_what_is_no_text(self, place: Place, data: bytes, said: str) -> None:
        place.write("a.bin", data)
        assert said in place.fails("read_file", file_path="a.bin")

    def test_no_message_advises_a_tool_that_is_not_there(self, place: Place) -> None:
        place.write("a.bin", b"\0")
        place.write("long.txt", b"x" * (READ_BYTES + 1))
        names = [tool.name for tool in place.section.tools]
        for path in ("a.bin", "long.txt", "missing.txt"):
            message = place.fails("read_file", file_path=path)
            assert "shell_execute" not in message or "shell_execute" in names

    def test_read_file_says_what_is_missing_or_no_file(self, place: Place) -> None:
        assert "use ls or glob" in place.fails("read_file", file_path="nothing.txt")
        place.sandbox.mkdir("folder")
        assert "use ls" in place.fails("read_file", file_path="folder")

    def test_read_file_cuts_long_lines_and_long_files(self, place: Place) -> None:
        place.write("long.txt", "x" * 300_000 + "\nend\n")
        found = place.ok("read_file", file_path="long.txt")
        assert len(found.content) == 100_000
        assert found.content.endswith("[truncated]")
        assert (found.limit, found.total_lines) == (1, 2)
        place.write("wide.txt", ("y" * 30_000 + "\n") * 10)
        assert place.ok("read_file", file_path="wide.txt").limit == 3

    def test_a_file_too_large_to_read_is_said_to_be(self, place: Place) -> None:
        place.write("huge.txt", b"x" * (16 * 1024 * 1024 + 1))
        assert "grep" in place.fails("read_file", file_path="huge.txt")

    def test_line_ends_are_not_shown(self, place: Place) -> None:
        place.write("dos.txt", "a\r\nb\u2028c\r\n")
        assert place.ok("read_file", file_path="dos.txt").content == "   1 | a\n   2 | b\u2028c"

    # write_file

    def test_write_file_makes_folders_and_tells_the_session(self, place: Place) -> None:
        value = place.ok("write_file", file_path="new/deep/a.txt", content="hé\n")
        assert (value.content, value.mode, value.encoding) == ("hé\n", "create", "utf-8")
        assert place.read("new/deep/a.txt") == "hé\n".encode()
        file = place.files["new/deep/a.txt"]
        assert (file.content, file.size_bytes, file.version) == ("hé\n", 4, 1)
        assert file.created_at == file.updated_at

    def test_write_file_never_overwrites(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="first")
        assert "edit_file" in place.fails("write_file", file_path="a.txt", content="second")
        assert place.read("a.txt") == b"first"
        assert place.files["a.txt"].content == "first"

    @pytest.mark.parametrize("length", [48_000, 48_001, 10_000_000])
    def test_write_file_takes_48000_characters(self, place: Place, length: int) -> None:
        result = place.call("write_file", file_path="a.txt", content="é" * length)
        assert result.success == (length == 48_000)
        if not result.success:
            assert "characters" in result.message and len(result.message) < 300
            assert place.section.sandbox is None

    def test_half_a_character_is_refused(self, place: Place) -> None:
        assert "surrogate" in place.fails("write_file", file_path="a", content="\ud800")
        assert place.files == {}

    # edit_file

    def test_edit_file_replaces_the_one_match(self, place: Place) -> None:
        place.write("a.txt", b"one\r\ntwo\r\nthree")
        value = place.ok("edit_file", file_path="a.txt", old_string="two", new_string="2")
        assert place.read("a.txt") == b"one\r\n2\r\nthree"
        assert (value.mode, value.content) == ("overwrite", "one\r\n2\r\nthree")
        assert place.files["a.txt"].content == "one\r\n2\r\nthree"

    def test_edit_file_takes_lines_as_read_file_shows_them(self, place: Place) -> None:
        place.write("a.txt", b"one\r\ntwo\r\nthree\r\n")
        place.ok("edit_file", file_path="a.txt", old_string="one\ntwo", new_string="1\n2\n2.5")
        assert place.read("a.txt") == b"1\r\n2\r\n2.5\r\nthree\r\n"

    def test_edit_file_wants_a_unique_match(self, place: Place) -> None:
        place.write("a.txt", "aba")
        arguments = {"file_path": "a.txt", "old_string": "a", "new_string": "c"}
        assert "replace_all" in place.fails("edit_file", **arguments)
        assert place.read("a.txt") == b"aba"
        result = place.call("edit_file", **arguments, replace_all=True)
        assert "2 places" in result.message
        assert place.read("a.txt") == b"cbc"

    @pytest.mark.parametrize(
        ("old", "said"), [("", "old_string is empty"), ("zzz", "copy the text exactly")]
    )
    def test_edit_file_says_why_nothing_was_replaced(
        self, place: Place, old: str, said: str
    ) -> None:
        place.write("a.txt", "text")
        assert said in place.fails("edit_file", file_path="a.txt", old_string=old, new_string="x")
        assert place.read("a.txt") == b"text"

    def test_edit_file_works_on_large_files_and_on_bytes(self, place: Place) -> None:
        head, tail = b"\xff\0" + b"x" * 100_000, b"\xfe" * 100_000
        place.write("large.bin", head + b"needle" + tail)
        value = place.ok("edit_file", file_path="large.bin", old_string="needle", new_string="pin")
        assert place.read("large.bin") == head + b"pin" + tail
        assert value.content is None
        assert place.files["large.bin"].content is None

    @pytest.mark.parametrize("field", ["old_string", "new_string"])
    def test_edit_file_bounds_its_strings(self, place: Place, field: str) -> None:
        arguments = {"old_string": "a", "new_string": "b", field: "x" * 48_001}
        assert field in place.fails("edit_file", file_path="a.txt", **arguments)
        assert "use ls or glob" in place.fails(
            "edit_file", file_path="a.txt", old_string="a", new_string="b"
        )

    # glob

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.py", ["top.py"]),
            ("**/*.py", [".hidden/h.py", "src/a.py", "src/deep/b.py", "top.py"]),
            ("src/**/*.py", ["src/a.py", "src/deep/b.py"]),
            ("src/*", ["src/a.py", "src/deep"]),
            ("?op.p[xy]", ["top.py"]),
            ("*.txt", []),
        ],
    )
    def test_glob_has_real_glob_semantics(
        self, place: Place, pattern: str, found: list[str]
    ) -> None:
        for path in ("top.py", "src/a.py", "src/deep/b.py", ".hidden/h.py"):
            place.ok("write_file", file_path=path, content="")
        assert [str(path) for path in place.ok("glob", pattern=pattern).matches] == found

    def test_glob_below_a_folder_gives_paths_from_the_workspace_on(self, place: Place) -> None:
        place.ok("write_file", file_path="src/deep/b.py", content="")
        found = place.ok("glob", pattern="**/*.py", path="src")
        assert [str(path) for path in found.matches] == ["src/deep/b.py"]

    def test_a_pattern_may_start_at_the_workspace_as_paths_do(self, place: Place) -> None:
        for path in ("top.py", "src/a.py", "src/deep/b.py"):
            place.ok("write_file", file_path=path, content="x = 1")
        for top in ("/workspace", place.sandbox.workdir):
            found = place.ok("glob", pattern=f"{top}/**/*.py")
            assert [str(path) for path in found.matches] == ["src/a.py", "src/deep/b.py", "top.py"]
            found = place.ok("glob", pattern=f"{top}/src/*.py", path="/workspace/src")
            assert [str(path) for path in found.matches] == ["src/a.py"]
            lines = place.ok("grep", pattern="x", glob=f"{top}/src/**")
            assert [str(line.path) for line in lines.matches] == ["src/a.py", "src/deep/b.py"]
            assert "relative to path" in place.fails("glob", pattern=f"{top}/*.py", path="src")

    def test_glob_is_cut_and_says_so(self, place: Place) -> None:
        if self.commands:
            place.shell("mkdir many; cd many; seq 2001 | xargs mkdir")
        else:
            for number in range(2001):
                place.sandbox.mkdir(f"many/{number:04}")
        result = place.call("glob", pattern="many/*")
        assert len(result.value.matches) == 2000
        assert result.value.truncated
        assert "narrower" in result.message

    @pytest.mark.parametrize(
        ("name", "field"), [("glob", "pattern"), ("grep", "pattern"), ("grep", "glob")]
    )
    def test_patterns_are_short(self, place: Place, name: str, field: str) -> None:
        arguments = {"pattern": "x", field: "x" * 4097}
        assert f"{field} has 4097 characters" in place.fails(name, **arguments)
        arguments[field] = "x" * 4096
        assert place.ok(name, **arguments).matches == ()

    def test_glob_says_what_is_no_pattern_and_no_folder(self, place: Place) -> None:
        assert "pattern" in place.fails("glob", pattern="../*")
        assert "use ls" in place.fails("glob", pattern="*", path="missing")

    # grep

    def test_grep_finds_lines(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="one\ntwo\none two\n")
        place.ok("write_file", file_path=".hidden/b.md", content="one\r\n")
        place.ok("write_file", file_path=".gitignore", content="a.txt\n")
        place.write("binary", b"one\0")
        found = place.ok("grep", pattern=r"^one\b")
        assert [(str(m.path), m.line_number, m.line) for m in found.matches] == [
            (".hidden/b.md", 1, "one"),
            ("a.txt", 1, "one"),
            ("a.txt", 3, "one two"),
        ]
        assert not found.truncated

    def test_grep_is_narrowed_by_path_and_glob(self, place: Place) -> None:
        for path in ("a.py", "src/b.py", "src/c.txt"):
            place.ok("write_file", file_path=path, content="x\n")
        search = lambda **how: [  # noqa: E731 - three calls of the same
            str(match.path) for match in place.ok("grep", pattern="x", **how).matches
        ]
        assert search(path="src") == ["src/b.py", "src/c.txt"]
        assert search(glob="**/*.py") == ["a.py", "src/b.py"]
        assert search(path="src", glob="*.py") == ["src/b.py"]
        assert search(path="src/c.txt") == ["src/c.txt"]

    def test_grep_is_cut_and_says_so(self, place: Place) -> None:
        place.write("a.txt", "x\n" * 2001)
        result = place.call("grep", pattern="x")
        assert len(result.value.matches) == 2000
        assert result.value.truncated
        assert "more" in result.message

    def test_grep_cuts_long_lines(self, place: Place) -> None:
        place.write("a.txt", "x" * 5000 + "\n")
        line = place.ok("grep", pattern="x").matches[0].line
        assert len(line) == 2000 and line.endswith("[truncated]")

    def test_grep_says_what_is_no_regular_expression(self, place: Place) -> None:
        assert "regular expression" in place.fails("grep", pattern="(")
        assert "use ls" in place.fails("grep", pattern="x", path="missing")

    def test_a_runaway_regular_expression_is_cut_by_time(self, place: Place) -> None:
        place.write("a.txt", "a" * 40 + "!\n")
        result = place.prompt.call(
            "grep",
            {"pattern": r"(a|a)+(?=b)"},
            session=place.session,
            deadline=Deadline.after(1.5),
        )
        assert not result.success
        assert place.ok("ls").entries  # the workspace is as usable as before

    # rm

    def test_rm_takes_files_folders_and_links(self, place: Place) -> None:
        place.ok("write_file", file_path="a/b/c.txt", content="x")
        place.ok("write_file", file_path="a/d.txt", content="x")
        place.ok("write_file", file_path="keep/e.txt", content="x")
        place.sandbox.symlink("dangling", "nowhere")
        place.sandbox.symlink("to-keep", "keep")
        place.ok("rm", path="a/d.txt")
        assert "a/d.txt" not in place.files
        for path in ("a", "dangling", "to-keep"):
            assert str(place.ok("rm", path=path).path) == path
        assert [str(entry.path) for entry in place.ok("ls").entries] == ["keep"]
        assert list(place.files) == ["keep/e.txt"]

    def test_rm_of_what_is_missing_is_an_error(self, place: Place) -> None:
        assert "use ls or glob" in place.fails("rm", path="nothing")
