"""The pages about tools and sections say what the code does; tests/project runs their code."""

from __future__ import annotations

import re
from pathlib import Path

from podbot.config import variables
from podbot.tools import (
    _file_tools,
    _mirror,
    evaluation,
    files,
    filesystem,
    mounts,
    paths,
    shell,
    unsafe_local,
)

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str, heading: str) -> dict[str, str]:
    """The table below a heading: first column to the rest."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.*) \|$", section, re.MULTILINE)
    return {first.strip("`"): rest for first, rest in found[1:]}


def test_the_limits_are_those_of_the_code() -> None:
    told = rows("sections.md", "Every limit")
    numbers = {name: set(re.findall(r"\d[\d,]*", rest)) for name, rest in told.items()}

    def shown(*values: float) -> set[str]:
        return {f"{value:,g}" if value < 1000 else f"{int(value):,}" for value in values}

    assert numbers["a path"] == shown(paths.MAX_SEGMENTS, paths.MAX_SEGMENT)
    assert numbers["ls"] == shown(_file_tools.LIST_ENTRIES)
    assert numbers["read_file"] == shown(
        files.READ_LINES, _file_tools.READ_CHARACTERS, _file_tools.READ_BYTES >> 20
    )
    assert numbers["write_file"] == shown(filesystem.KEPT_CHARACTERS)
    assert numbers["edit_file"] == shown(filesystem.KEPT_CHARACTERS, 64)
    assert numbers["glob"] == shown(_file_tools.MATCHES, _file_tools.PATTERN_CHARACTERS)
    assert numbers["grep"] == shown(
        _file_tools.MATCHES,
        _file_tools.LINE_CHARACTERS,
        _file_tools.SEARCH_SECONDS,
        _file_tools.PATTERN_CHARACTERS,
        _file_tools.READ_LIMIT >> 20,
    )
    assert numbers["a command"] == shown(shell.COMMAND_CHARACTERS)
    assert numbers["its environment"] == shown(
        shell.ENVIRONMENT_ENTRIES, shell.ENVIRONMENT_KEY, shell.ENVIRONMENT_VALUE
    )
    assert numbers["its stdin"] == shown(shell.STDIN_CHARACTERS)
    assert numbers["its time"] == shown(
        shell.LEAST_SECONDS, shell.MOST_SECONDS, shell.DEFAULT_SECONDS
    )
    assert numbers["its output"] == shown(shell.STREAM_BYTES >> 10)
    assert numbers["evaluate_python"] == shown(
        evaluation.SECONDS, evaluation.STREAM_CHARACTERS, unsafe_local.EVAL_CHARACTERS
    )
    assert numbers["mounts"] == shown(mounts.MAX_FILES, mounts.MAX_DEPTH)
    assert numbers["the `VirtualFileSystem` slice"] == shown(
        _mirror.ENTRIES, _mirror.WALKED, filesystem.KEPT_CHARACTERS, _mirror.READS
    )


def test_every_variable_is_listed_with_its_alias() -> None:
    told = rows("sections.md", "Every environment variable")
    expected = {
        each.name: f"{f'`{each.alias}`' if each.alias else ''} | {each.meaning}".strip()
        for each in variables.TABLE
    }
    assert {name: rest.strip() for name, rest in told.items()} == expected


def test_every_tool_is_told_of() -> None:
    told = rows("tools.md", "All nine")
    assert list(told) == [
        "ls", "read_file", "write_file", "edit_file", "glob", "grep", "rm", "shell_execute",
        "evaluate_python",
    ]  # fmt: skip
