"""What every section with a workspace does, whatever its backend: one class of tests for all.

A backend's test class inherits from `FileToolBehaviour` or `CommandToolBehaviour` and says how its
section is made. The same tests then run on memory, local processes, overlays and containers.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from podbot.prompt import Cancellation, Deadline, Prompt
from podbot.prompt.result import ToolResult
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import Session
from podbot.sandbox import Sandbox
from podbot.tools import (
    EvalResult,
    HostMount,
    VfsFile,
    VirtualFileSystem,
    WorkspaceSection,
)

FILE_TOOLS = ["ls", "read_file", "write_file", "edit_file", "glob", "grep", "rm"]
COMMAND_TOOLS = ["shell_execute", "evaluate_python"]


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Until the condition holds; a failure if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)


def unique_sleep() -> str:
    """A command that sleeps for a minute, unlike any other that does."""
    return f"sleep 60.{random.randrange(10**9)}"


def running(words: str) -> str:
    """A script that tells how many processes have these words in their command line."""
    pattern = f"[{words[0]}]{words[1:]}"  # which does not match itself
    return (
        "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline; echo; done 2>/dev/null "
        f"| grep -c '{pattern}'"
    )


class Clock:
    """A clock that goes a second further each time someone looks."""

    def __init__(self) -> None:
        self._ticks = itertools.count()
        self.start = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.start + timedelta(seconds=next(self._ticks))


class Place:
    """A session, a section and a prompt around it, with short ways to call tools."""

    def __init__(self, session: Session, section: WorkspaceSection):
        self.session, self.section = session, section
        self.prompt = Prompt(ns="tests", key="section", sections=[section])

    def call(self, name: str, **arguments: object) -> ToolResult[Any]:
        return self.prompt.call(name, arguments, session=self.session)

    def ok(self, name: str, **arguments: object) -> Any:
        """The value of a call that must succeed."""
        result = self.call(name, **arguments)
        assert result.success, result.message
        return result.value

    def fails(self, name: str, **arguments: object) -> str:
        """What a call that must fail says to the model."""
        result = self.call(name, **arguments)
        assert not result.success, result.message
        return result.message

    def write(self, path: str, content: str | bytes) -> None:
        """A file as it is wanted, past the limits of the tools."""
        self.sandbox.write(path, content)

    def read(self, path: str) -> bytes:
        return self.sandbox.read(path)

    @property
    def sandbox(self) -> Sandbox:
        if self.section.sandbox is None:
            self.ok("ls")
        assert self.section.sandbox is not None
        return self.section.sandbox

    @property
    def files(self) -> dict[str, VfsFile]:
        """The files as the session knows them."""
        known = self.session.query(VirtualFileSystem).latest()
        assert known is not None
        return {str(file.path): file for file in known.files}

    @property
    def workspace(self) -> Any:
        """The workspace slice, which has one value at most."""
        kind = self.section._live._kind
        values = self.session.query(kind).all()
        assert len(values) <= 1
        return values[0] if values else None

    def shell(self, script: str, **arguments: object) -> Any:
        return self.ok("shell_execute", command=["sh", "-c", script], **arguments)


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


class FileToolBehaviour:
    """The seven file tools, their limits, and what the session knows of them."""

    commands = False

    def make_section(self, session: Session, **config: Any) -> WorkspaceSection:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def folders(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    @pytest.fixture
    def session(self) -> Session:
        return Session(bus=InProcessEventBus())

    @pytest.fixture
    def place(self, session: Session) -> Iterator[Place]:
        section = self.make_section(session)
        yield Place(session, section)
        section.close()

    @pytest.fixture
    def project(self) -> Path:
        """A host folder that can be mounted."""
        project = self.tmp_path / "host" / "project"
        (project / "src" / "deep").mkdir(parents=True)
        (project / "README.md").write_text("read me\n")
        (project / "src" / "main.py").write_text("print('main')\n")
        (project / "src" / "deep" / "low.py").write_text("low = 1\n")
        (project / "picture.bin").write_bytes(b"\x89PNG\0\xff")
        return project

    def mounted(self, session: Session, *mounts: HostMount) -> Place:
        section = self.make_section(
            session, mounts=mounts, allowed_host_roots=(self.tmp_path / "host",)
        )
        return Place(session, section)

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
        assert place.ok("read_file", file_path="a.txt", limit=5000).limit == 2000
        assert place.ok("read_file", file_path="a.txt", offset=12_000).content == ""

    @pytest.mark.parametrize("arguments", [{"offset": -1}, {"limit": 0}, {"limit": -5}])
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

    # What the session knows

    def test_versions_count_what_was_written(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="1")
        for number in range(1, 4):
            place.ok(
                "edit_file", file_path="a.txt", old_string=str(number), new_string=str(number + 1)
            )
        file = place.files["a.txt"]
        assert (file.content, file.version) == ("4", 4)
        assert file.created_at <= file.updated_at

    def test_every_call_counts_as_use(self, session: Session) -> None:
        place = Place(session, self.make_section(session, clock=Clock()))
        place.ok("ls")
        started = place.workspace.started_at
        moments = [place.workspace.last_used_at]
        for name, arguments in (
            ("write_file", {"file_path": "a.txt", "content": "x"}),
            ("read_file", {"file_path": "a.txt"}),
            ("read_file", {"file_path": "missing"}),
            ("grep", {"pattern": "x"}),
            ("rm", {"path": "a.txt"}),
        ):
            place.call(name, **arguments)
            moments.append(place.workspace.last_used_at)
        assert moments == sorted(set(moments))  # also after the call that failed
        assert place.workspace.started_at == started
        place.section.close()

    def test_a_call_that_fails_leaves_the_files_as_they_are_known(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        before = place.files
        place.fails("write_file", file_path="a.txt", content="y")
        place.fails("edit_file", file_path="a.txt", old_string="q", new_string="y")
        place.fails("rm", path="b.txt")
        assert {path: file.content for path, file in place.files.items()} == {"a.txt": "x"}
        assert place.files["a.txt"].version == before["a.txt"].version

    def test_a_failure_of_the_first_call_still_tells_of_the_workspace(self, place: Place) -> None:
        place.fails("read_file", file_path="missing")
        assert place.workspace is not None
        failed = place.session.query(ToolInvoked).latest()
        assert failed is not None and not failed.success

    @pytest.mark.parametrize(
        "arguments",
        [
            {"file_path": "a.txt", "content": "x", "mode": "overwrite"},
            {"file_path": 7, "content": "x"},
            {"file_path": "a.txt"},
            {"file_path": "a.txt", "content": float("nan")},
            {"file_path": "a.txt", "content": ["x"]},
            {"file_path": "ä.txt", "content": "x"},
        ],
    )
    def test_bad_arguments_change_nothing_in_the_session(
        self, place: Place, arguments: dict[str, object]
    ) -> None:
        place.ok("ls")
        before = place.session.query(VirtualFileSystem).all()
        message = place.fails("write_file", **arguments)
        assert message
        assert place.session.query(VirtualFileSystem).all() == before
        assert place.ok("ls").entries == ()

    def test_a_reset_session_learns_of_the_workspace_again(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        place.session.mutate().reset()
        place.ok("ls")
        assert place.workspace is not None

    # Mounts

    def test_mounts_are_copied_in_and_known_before_the_first_call(
        self, session: Session, project: Path
    ) -> None:
        place = self.mounted(session, HostMount("project"))
        assert place.section.sandbox is None
        known = {path: file.content for path, file in place.files.items()}
        assert known == {
            "project/README.md": "read me\n",
            "project/picture.bin": None,
            "project/src/deep/low.py": "low = 1\n",
            "project/src/main.py": "print('main')\n",
        }
        assert place.ok("read_file", file_path="project/README.md").content == "   1 | read me"
        assert place.read("project/picture.bin") == b"\x89PNG\0\xff"
        assert {path: file.content for path, file in place.files.items()} == known
        assert all(file.version == 1 for file in place.files.values())
        place.section.close()

    def test_what_is_done_to_a_mount_stays_in_the_workspace(
        self, session: Session, project: Path
    ) -> None:
        place = self.mounted(session, HostMount("project", mount_path="/"))
        place.ok("edit_file", file_path="README.md", old_string="read", new_string="wrote")
        place.ok("rm", path="src")
        assert (project / "README.md").read_text() == "read me\n"
        assert (project / "src" / "main.py").exists()
        assert sorted(place.files) == ["README.md", "picture.bin"]
        assert place.files["README.md"].version == 2
        place.section.close()

    def test_a_mount_keeps_what_can_be_run(self, session: Session, project: Path) -> None:
        (project / "run.sh").write_text("#!/bin/sh\n")
        (project / "run.sh").chmod(0o700)
        place = self.mounted(session, HostMount("project"))
        assert place.sandbox.stat("project/run.sh").mode & 0o111
        assert not place.sandbox.stat("project/README.md").mode & 0o111
        place.section.close()

    def test_later_mounts_win(self, session: Session, project: Path) -> None:
        other = self.tmp_path / "host" / "other"
        (other / "README.md").mkdir(parents=True)
        (other / "README.md" / "x.txt").write_text("a folder now")
        (other / "src").write_text("a file now")
        place = self.mounted(session, HostMount("project", "/"), HostMount("other", "/"))
        known = sorted(place.files)
        place.ok("ls")
        assert known == sorted(place.files) == ["README.md/x.txt", "picture.bin", "src"]
        assert place.read("src") == b"a file now"
        place.section.close()

    def test_the_prompt_shows_twenty_files_of_a_mount(self, session: Session) -> None:
        many = self.tmp_path / "host" / "many"
        many.mkdir(parents=True)
        for number in range(25):
            (many / f"{number:02}.txt").write_text("x")
        place = self.mounted(session, HostMount("many"))
        text = place.prompt.render(session=session).text
        assert text.count("many/") == 20
        assert "and 5 more" in text
        place.section.close()

    # Clones

    def test_a_clone_is_fully_apart(self, session: Session, project: Path) -> None:
        place = self.mounted(session, HostMount("project"))
        place.ok("write_file", file_path="mine.txt", content="x")
        bus = InProcessEventBus()
        told: list[ToolInvoked] = []
        bus.subscribe(ToolInvoked, told.append)
        other_session = session.clone(bus=bus)
        section = place.section.clone(session=other_session, bus=bus)
        other = Place(other_session, section)
        assert "mine.txt" not in other.files
        assert other.workspace is None
        other.ok("rm", path="project/src")
        other.ok("write_file", file_path="theirs.txt", content="y")
        assert sorted(other.files) == [
            "project/README.md", "project/picture.bin", "theirs.txt",
        ]  # fmt: skip
        assert "theirs.txt" not in place.files and "mine.txt" in place.files
        assert place.ok("glob", pattern="*.txt").matches[0].segments == ("mine.txt",)
        assert [event.name for event in told] == ["rm", "write_file"]
        section.close()
        assert place.ok("read_file", file_path="mine.txt").total_lines == 1
        place.section.close()

    # The end

    def test_a_closed_section_says_so(self, place: Place) -> None:
        place.ok("ls")
        sandbox = place.sandbox
        place.section.close()
        place.section.close()
        assert sandbox.closed
        assert "closed" in place.fails("ls")

    def test_a_section_that_was_never_used_closes_too(self, place: Place) -> None:
        place.section.close()
        assert "closed" in place.fails("ls")

    def test_collecting_a_section_ends_its_sandbox(self, session: Session) -> None:
        section = self.make_section(session)
        place = Place(session, section)
        place.ok("ls")
        sandbox = place.sandbox
        del section, place
        gc.collect()
        assert sandbox.closed

    # Many at once

    def test_32_threads_lose_no_event(self, place: Place) -> None:
        place.ok("ls")
        calls = 4

        def work(number: int) -> None:
            for turn in range(calls):
                path = f"thread{number}/{turn}.txt"
                place.ok("write_file", file_path=path, content=f"{number} {turn}")
                text = place.ok("read_file", file_path=path).content
                assert text == f"   1 | {number} {turn}"

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(work, range(32)))
        assert len(place.files) == 32 * calls
        events = place.session.query(ToolInvoked).where(lambda event: event.name == "write_file")
        assert len(events) == 32 * calls
        for path, file in place.files.items():
            assert file.content == path.removeprefix("thread").removesuffix(".txt").replace(
                "/", " "
            )


class CommandToolBehaviour(FileToolBehaviour):
    """All nine tools."""

    commands = True
    eval_characters: int | None = None
    sees_workspace_path = False
    """Whether ``/workspace`` exists inside commands."""

    # shell_execute

    def test_a_command_tells_all_it_did(self, place: Place) -> None:
        done = place.shell("echo out; echo err >&2; exit 3")
        assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
        assert done.command == ("sh", "-c", "echo out; echo err >&2; exit 3")
        assert (done.cwd, done.timed_out) == (".", False)
        assert done.duration_ms >= 0
        fields = [field.name for field in dataclasses.fields(done)]
        assert fields == [
            "command", "cwd", "exit_code", "stdout", "stderr", "duration_ms", "timed_out",
        ]  # fmt: skip

    def test_no_shell_reads_the_words(self, place: Place) -> None:
        done = place.ok("shell_execute", command=["echo", "$HOME", "*", ";", "false"])
        assert done.stdout == "$HOME * ; false\n"

    def test_a_command_that_is_not_there_is_data_too(self, place: Place) -> None:
        done = place.ok("shell_execute", command=["no-such-command"])
        assert done.exit_code == 127 and "no-such-command" in done.stderr
        place.ok("write_file", file_path="plain.txt", content="x")
        assert place.ok("shell_execute", command=["./plain.txt"]).exit_code == 126

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"command": []}, "command is empty"),
            ({"command": [""]}, "command is empty"),
            ({"command": [" "]}, "command is empty"),
            ({"command": "ls -l"}, "command"),
            ({"command": ["echo", "é"]}, "ASCII"),
            ({"command": ["echo", "a\0b"]}, "NUL"),
            ({"command": ["echo", "x" * 4093]}, "4097 characters"),
            ({"command": ["true", *[""] * 4096]}, "4097 words"),
            ({"command": ["true"], "env": {f"V{n}": "" for n in range(65)}}, "65 entries"),
            ({"command": ["true"], "env": {"K" * 81: "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"": "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"A=B": "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"É": "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"K": "x" * 513}}, "values are ASCII"),
            ({"command": ["true"], "env": {"K": "é"}}, "values are ASCII"),
            ({"command": ["true"], "env": {"K": 1}}, "env"),
            ({"command": ["true"], "stdin": "x" * 48_001}, "48001 characters"),
            ({"command": ["true"], "timeout_seconds": float("nan")}, "timeout_seconds"),
            ({"command": ["true"], "timeout_seconds": "5"}, "timeout_seconds"),
            ({"command": ["true"], "cwd": "missing"}, "missing"),
            ({"command": ["true"], "cwd": "/etc"}, "outside of the workspace"),
            ({"command": ["true"], "shell": True}, "shell"),
        ],
    )
    def test_a_command_keeps_the_limits(
        self, place: Place, arguments: dict[str, object], said: str
    ) -> None:
        message = place.fails("shell_execute", **arguments)
        assert said in message
        assert len(message) < 500

    def test_what_is_just_within_the_limits_is_done(self, place: Place) -> None:
        done = place.ok(
            "shell_execute",
            command=["sh", "-c", "cat | wc -c; echo $K64 | wc -c; true " + "x" * 4051],
            env={"K" * 80: "x", **{f"K{n}": "y" * 512 for n in range(2, 65)}},
            stdin="z" * 48_000,
        )
        assert done.stdout.split() == ["48000", "513"]

    def test_a_command_runs_where_it_was_told_to(self, place: Place) -> None:
        place.ok("write_file", file_path="src/deep/a.txt", content="x")
        for cwd in ("src/deep", "/workspace/src/deep"):
            done = place.ok("shell_execute", command=["ls"], cwd=cwd)
            assert (done.stdout, done.cwd) == ("a.txt\n", "src/deep")
        assert place.ok("shell_execute", command=["ls"]).stdout == "src\n"

    def test_stdin_and_environment_arrive(self, session: Session) -> None:
        place = Place(session, self.make_section(session, base_environment={"BASE": "b", "X": "1"}))
        done = place.ok(
            "shell_execute",
            command=["sh", "-c", "cat; echo $BASE $X $MORE"],
            stdin="from stdin\n",
            env={"X": "2", "MORE": "m"},
        )
        assert done.stdout == "from stdin\nb 2 m\n"
        assert place.shell("echo $BASE $X $MORE").stdout == "b 1\n"
        assert dict(place.workspace.env) == {"BASE": "b", "X": "1"}
        place.section.close()

    def test_the_environment_is_short(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PODBOT_TEST_SECRET", "hunter2")
        assert "hunter2" not in place.ok("shell_execute", command=["env"]).stdout

    def test_environment_values_show_in_no_process_list(self, place: Place) -> None:
        secret = f"value{random.randrange(10**9)}"
        assert place.shell(running(secret), env={"KEY": secret}).stdout == "0\n"
        assert place.shell(running(secret) + f"; : {secret}").stdout != "0\n"  # it would be seen

    @pytest.mark.parametrize(
        ("asked", "given"), [(None, 30.0), (0.2, 1.0), (-5, 1.0), (500, 120.0), (7, 7.0)]
    )
    def test_a_timeout_is_clamped(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, asked: float | None, given: float
    ) -> None:
        place.ok("ls")
        seen: list[float] = []
        real = Sandbox.exec

        def spy(sandbox: Sandbox, argv: Any, **options: Any) -> Any:
            seen.append(options["timeout"])
            return real(sandbox, argv, **options)

        monkeypatch.setattr(Sandbox, "exec", spy)
        place.ok("shell_execute", command=["true"], timeout_seconds=asked)
        assert seen == [given]

    def test_a_timeout_kills_the_whole_group_and_keeps_the_output(self, place: Place) -> None:
        sleep = unique_sleep()
        done = place.shell(
            f"echo begun; ({sleep}; echo late > late.txt) & (setsid {sleep} &) ; "
            f"echo $$ > pid; wait; {sleep}",
            timeout_seconds=2,
        )
        assert (done.exit_code, done.timed_out) == (124, True)
        assert (done.stdout, done.stderr) == ("begun\n", "")
        assert place.shell(running(sleep)).stdout == "0\n"
        assert "pid" in place.files and "late.txt" not in place.files

    def test_output_is_cut_at_32_kib(self, place: Place) -> None:
        done = place.shell(
            "head -c 40000 /dev/zero | tr '\\0' x; head -c 32768 /dev/zero | tr '\\0' y >&2"
        )
        assert len(done.stdout) == 32 * 1024
        assert done.stdout.endswith("x[truncated]")
        assert done.stderr == "y" * 32 * 1024

    def test_output_that_is_no_text_is_text_all_the_same(self, place: Place) -> None:
        done = place.shell("printf 'a\\377b'; head -c 32768 /dev/zero | tr '\\0' '\\377' >&2")
        assert done.stdout == "a\ufffdb"
        assert len(done.stderr.encode()) <= 32 * 1024
        assert done.stderr.endswith("[truncated]")

    def test_output_nobody_wants_goes_nowhere(
        self, place: Place, capfd: pytest.CaptureFixture[str]
    ) -> None:
        done = place.shell("echo out; echo err >&2", capture_output=False)
        assert (done.stdout, done.stderr) == ("capture disabled", "capture disabled")
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == ("", "")

    def test_files_a_command_changed_reach_the_session(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="a")
        place.ok("write_file", file_path="b.txt", content="b")
        place.ok("write_file", file_path="same.txt", content="s")
        place.shell(
            "echo longer > a.txt; rm b.txt; mkdir d; echo new > d/c.txt; printf '\\0' > bin; "
            "touch same.txt; ln -s a.txt link; head -c 60000 /dev/zero | tr '\\0' x > large"
        )
        known = {path: (file.content, file.version) for path, file in place.files.items()}
        assert known == {
            "a.txt": ("longer\n", 2),
            "bin": (None, 1),
            "d/c.txt": ("new\n", 1),
            "large": (None, 1),
            "same.txt": ("s", 1),
        }
        assert place.files["bin"].encoding == "binary"
        assert place.files["large"].size_bytes == 60_000

    def test_a_file_rewritten_at_once_with_the_same_size_is_noticed(self, place: Place) -> None:
        for number in range(6):
            place.shell(f"printf {number} > same-size.txt")
            assert place.files["same-size.txt"].content == str(number)

    def test_files_a_failing_call_changed_reach_the_session_too(self, place: Place) -> None:
        place.ok("write_file", file_path="old.txt", content="x")
        result = place.call(
            "evaluate_python",
            code="import os; os.remove('old.txt'); open('new.txt', 'w').write('n'); 1/0",
        )
        assert not result.success
        assert {path: file.content for path, file in place.files.items()} == {"new.txt": "n"}

    def test_a_fifo_a_socket_and_a_device_hang_nobody(self, place: Place) -> None:
        place.shell("mkfifo fifo; ln -s /dev/zero zero; ln -s fifo to-fifo")
        for path in ("fifo", "to-fifo"):
            assert "regular file" in place.fails("read_file", file_path=path)
            place.fails("edit_file", file_path=path, old_string="a", new_string="b")
            place.fails("write_file", file_path=path, content="x")
        place.fails("read_file", file_path="zero")
        assert place.ok("grep", pattern="x").matches == ()
        kinds = {str(entry.path): entry.kind for entry in place.ok("ls").entries}
        assert kinds["fifo"] == "other"
        place.ok("rm", path="fifo")

    def test_names_that_are_no_text_are_shown_as_such(self, place: Place) -> None:
        place.shell("printf x > \"$(printf 'a\\377\\033b')\"")
        names = [str(entry.path) for entry in place.ok("ls").entries]
        assert len(names) == 1 and names[0].isprintable()
        assert "\ufffd" in names[0]
        names[0].encode()
        assert [str(match.path) for match in place.ok("grep", pattern="x").matches] == names
        assert [str(path) for path in place.ok("glob", pattern="*").matches] == names

    # evaluate_python

    def test_code_gives_its_last_value_and_what_it_printed(self, place: Place) -> None:
        code = "import sys\nprint('out', end='')\nprint('err', file=sys.stderr, end='')\n'x' * 3"
        done = place.ok("evaluate_python", code=code)
        assert (done.value_repr, done.stdout, done.stderr) == ("'xxx'", "out", "err")
        assert (done.globals, done.reads, done.writes) == ({}, (), ())
        assert place.session.query(EvalResult).latest() == done

    @pytest.mark.parametrize("code", ["x = 1", "None", "for i in range(3): i"])
    def test_code_without_a_value_gives_none(self, place: Place, code: str) -> None:
        assert place.ok("evaluate_python", code=code).value_repr is None

    def test_an_exception_is_a_failing_result_with_its_traceback(self, place: Place) -> None:
        result = place.call("evaluate_python", code="def f():\n    return 1 / 0\nprint(1)\nf()")
        assert not result.success
        assert result.value.stdout == "1\n"
        assert "line 2, in f" in result.value.stderr
        assert "ZeroDivisionError" in result.value.stderr
        assert "in run" not in result.value.stderr
        result = place.call("evaluate_python", code="def (")
        assert not result.success and "SyntaxError" in result.value.stderr
        assert not place.call("evaluate_python", code="raise SystemExit(2)").success
        assert place.ok("evaluate_python", code="raise SystemExit(0)").value_repr is None

    def test_nothing_of_one_call_is_left_for_the_next_but_files(self, place: Place) -> None:
        place.ok("evaluate_python", code="x = 1; open('kept.txt', 'w').write('k')")
        assert "NameError" in place.call("evaluate_python", code="x").value.stderr
        assert place.ok("evaluate_python", code="open('kept.txt').read()").value_repr == "'k'"
        assert place.files["kept.txt"].content == "k"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"reads": ["a"]}, "reads"),
            ({"writes": ["a"]}, "writes"),
            ({"globals": {"a": "1"}}, "globals"),
            ({"code": "  "}, "code is empty"),
            ({"code": "'\ud800'"}, "surrogate"),
        ],
    )
    def test_code_comes_alone(self, place: Place, arguments: dict[str, object], said: str) -> None:
        assert said in place.fails("evaluate_python", **{"code": "1", **arguments})

    def test_code_that_takes_too_long_is_ended_with_all_it_started(self, place: Place) -> None:
        sleep = unique_sleep()
        code = (
            "import subprocess, sys, time\nprint('begun', flush=True)\n"
            f"subprocess.Popen({sleep.split()}, start_new_session=True)\ntime.sleep(60)"
        )
        result = place.prompt.call("evaluate_python", {"code": code}, session=place.session)
        assert not result.success and "5 s" in result.message
        value = result.value
        assert isinstance(value, EvalResult)
        assert value.stdout == "begun\n" and "5 seconds" in value.stderr
        assert place.shell(running(sleep)).stdout == "0\n"

    def test_streams_of_code_are_cut_at_4096_characters(self, place: Place) -> None:
        code = "import sys\nprint('é' * 5000)\nprint('y' * 4095, file=sys.stderr)\n'z' * 5000"
        done = place.ok("evaluate_python", code=code)
        for text in (done.stdout, done.value_repr):
            assert len(text) == 4096 and text.endswith("[truncated]")
        assert done.stderr == "y" * 4095 + "\n"

    def test_a_value_lost_in_too_much_output_is_none(self, place: Place) -> None:
        done = place.ok("evaluate_python", code="print('x' * 2_000_000)\n1")
        assert done.value_repr is None and done.stdout.endswith("[truncated]")

    def test_long_code_is_taken_or_refused_as_the_section_says(self, place: Place) -> None:
        code = "x = 0\n" + "x += 1\n" * 30_000 + "x"
        if self.eval_characters is None:
            assert place.ok("evaluate_python", code=code).value_repr == "30000"
        else:
            most = "1" + " " * (self.eval_characters - 1)
            assert place.ok("evaluate_python", code=most).value_repr == "1"
            message = place.fails("evaluate_python", code=most + " ")
            assert str(self.eval_characters) in message and "write_file" in message

    def test_a_file_of_the_workspace_takes_no_modules_place(self, place: Place) -> None:
        for name in ("shutil", "linecache", "site", "sitecustomize", "usercustomize", "encodings"):
            place.ok("write_file", file_path=f"{name}.py", content="raise SystemExit('hijacked')")
        place.ok("write_file", file_path="own.py", content="value = 42")
        done = place.ok("evaluate_python", code="import shutil, own\nown.value")
        assert done.value_repr == "42"
        failing = place.call("evaluate_python", code="1/0")
        assert "ZeroDivisionError" in failing.value.stderr

    def test_code_sees_itself_as_a_program(self, place: Place) -> None:
        code = "import sys, os\n(__name__, sys.argv, sys.stdin.read(), os.path.exists('here'))"
        place.ok("write_file", file_path="here", content="")
        assert place.ok("evaluate_python", code=code).value_repr == "('__main__', [''], '', True)"

    def test_workspace_is_a_path_where_the_backend_makes_it_one(self, place: Place) -> None:
        exists = place.ok("shell_execute", command=["test", "-e", "/workspace"]).exit_code == 0
        assert exists == self.sees_workspace_path
        text = place.prompt.render(session=place.session).text
        assert ("`/workspace` does not exist" in text) != self.sees_workspace_path

    # Cancelling, and sandboxes that die

    def test_cancelling_a_call_kills_its_command(self, place: Place) -> None:
        place.ok("ls")
        cancellation = Cancellation()
        results: list[ToolResult[object]] = []
        sleep = unique_sleep()

        def run() -> None:
            script = f"echo $$ > pid; {sleep} & {sleep}"
            results.append(
                place.prompt.call(
                    "shell_execute",
                    {"command": ["sh", "-c", script], "timeout_seconds": 100},
                    session=place.session,
                    cancellation=cancellation,
                )
            )

        thread = threading.Thread(target=run)
        thread.start()
        wait_for(lambda: place.sandbox.exists("pid"))
        cancellation.cancel()
        thread.join(20)
        assert not thread.is_alive()
        assert not results[0].success and "cancelled" in results[0].message
        assert place.shell(running(sleep)).stdout == "0\n"
        assert "pid" in place.files

    def test_a_deadline_is_kept(self, place: Place) -> None:
        place.ok("ls")
        sleep = unique_sleep()
        result = place.prompt.call(
            "shell_execute",
            {"command": sleep.split()},
            session=place.session,
            deadline=Deadline.after(1),
        )
        assert not result.success and "deadline" in result.message
        assert place.shell(running(sleep)).stdout == "0\n"

    def test_commands_of_32_threads_do_not_mix(self, place: Place) -> None:
        place.ok("ls")

        def work(number: int) -> None:
            done = place.shell(f"for i in 1 2 3; do echo {number}; done; echo {number} > f{number}")
            assert done.stdout == f"{number}\n" * 3

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(work, range(32)))
        assert {path: file.content for path, file in place.files.items()} == {
            f"f{number}": f"{number}\n" for number in range(32)
        }
        events = place.session.query(ToolInvoked).where(lambda e: e.name == "shell_execute")
        assert len(events) == 32

    def test_reads_and_commands_of_many_threads_agree_in_the_end(self, place: Place) -> None:
        place.ok("ls")

        def work(number: int) -> None:
            if number % 2:
                place.shell(f"echo {number} > s{number}; echo more > x{number}")
            else:
                place.ok("write_file", file_path=f"w{number}", content=f"{number}\n")
                place.ok("edit_file", file_path=f"w{number}", old_string="\n", new_string="!\n")

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(32)))
        place.shell("true")
        truth = {
            entry.path: place.read(entry.path).decode()
            for entry in place.sandbox.list(".", recursive=True)
        }
        assert {path: file.content for path, file in place.files.items()} == truth
        assert len(truth) == 16 + 16 * 2

    def test_a_workspace_of_very_many_files_is_known_in_part(self, place: Place) -> None:
        place.ok("write_file", file_path="mine.txt", content="x")
        place.shell("mkdir many; cd many; seq 2500 | xargs touch")
        known = place.session.query(VirtualFileSystem).latest()
        assert known is not None and not known.complete
        assert place.files["mine.txt"].content == "x"
        place.shell("echo longer > mine.txt")
        assert place.files["mine.txt"].content == "longer\n"
        place.shell("rm mine.txt")
        assert "mine.txt" not in place.files
        place.shell("rm -r many")
        known = place.session.query(VirtualFileSystem).latest()
        assert known is not None and known.complete and known.files == ()
