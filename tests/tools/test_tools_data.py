"""Results as JSON data, for programs: the same from `as_data` and in what MCP carries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from podbot.mcp._results import answer
from podbot.prompt import Prompt, ToolResult
from podbot.prompt.result import as_json
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection, VfsPath


def test_a_path_in_a_result_is_text_that_the_tools_take(tmp_path: Path) -> None:
    section = UnsafeLocalSandboxSection(
        session=Session(bus=InProcessEventBus()),
        config=UnsafeLocalSandboxConfig(workspace_root=tmp_path),
    )
    with Prompt(ns="a", key="b", sections=[section]) as prompt:
        prompt.call("write_file", {"file_path": "src/app.py", "content": "x = 1\n"})
        read = prompt.call("read_file", {"file_path": "src/app.py"})
        listed = prompt.call("ls", {})
        globbed = prompt.call("glob", {"pattern": "**/*.py"})
        grepped = prompt.call("grep", {"pattern": "x"})
        for result in (read, listed, globbed, grepped):
            assert answer(result, data=True).structured_content == result.as_data()
            assert "segments" not in json.dumps(result.as_data())

        value = grepped.as_data()["value"]
        assert value == {
            "matches": [{"path": "src/app.py", "line_number": 1, "line": "x = 1"}],
            "truncated": False,
            "timed_out": False,
            "skipped": 0,
        }
        assert prompt.call("read_file", {"file_path": value["matches"][0]["path"]}) == read
        assert globbed.as_data()["value"] == {"matches": ["src/app.py"], "truncated": False}
        root = listed.as_data()["value"]
        assert isinstance(root, dict)
        assert root["path"] == "."
        assert prompt.call("ls", {"path": root["path"]}).as_data() == listed.as_data()


def test_a_dataclass_may_say_what_it_is_in_json() -> None:
    @dataclass(frozen=True, slots=True)
    class Pair:
        left: VfsPath
        right: VfsPath

        def __podbot_json__(self) -> object:
            return [self.left, self.right]

    pair = Pair(VfsPath(("a", "b")), VfsPath())
    assert ToolResult("m", pair).as_data()["value"] == ["a/b", "."]
    assert ToolResult("", {"it": pair}).render() == '{"it": ["a/b", "."]}'

    @dataclass(frozen=True, slots=True)
    class Endless:
        def __podbot_json__(self) -> object:
            return self

    assert as_json(Endless()) == "..."
