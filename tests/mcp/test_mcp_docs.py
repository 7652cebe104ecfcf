"""What docs/mcp.md tells people to put into their clients' files is what those clients read."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from pathlib import Path

import pytest

from podbot.cli import mcp as command
from podbot.cli.usage import Parser
from podbot.mcp._stdio import MESSAGE_BYTES
from podbot.mcp.server import THREADS, WAITING
from podbot.sandbox.backends import NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return found


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="podbot mcp")
    command.add_arguments(made)
    return made


@pytest.mark.parametrize(
    "server",
    [
        json.loads(block("json"))["mcpServers"]["podbot"],
        tomllib.loads(block("toml"))["mcp_servers"]["podbot"],
    ],
    ids=["Claude Code", "Codex"],
)
def test_the_files_of_clients_start_podbot_mcp(server: dict[str, object]) -> None:
    assert server["command"] == "podbot"
    arguments = server["args"]
    assert isinstance(arguments, list) and arguments[0] == "mcp"
    assert parser().parse_args(arguments[1:]).backend == "overlay"


def test_the_page_and_the_help_name_every_option_and_backend() -> None:
    help_text = parser().format_help()
    options = set(re.findall(r"--[a-z]+", help_text)) - {"--help"}

    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `--")]
    assert options == set(re.findall(r"--[a-z]+", " ".join(rows)))
    for backend in NAMES:
        assert re.search(rf"^\| `{backend}`", PAGE, re.MULTILINE)
        assert re.search(rf"^  {backend} ", help_text, re.MULTILINE)


def test_the_limits_are_those_of_the_code() -> None:
    assert f"Up to {THREADS} calls run at the same time, {WAITING} may wait" in PAGE
    assert f"a message may have {MESSAGE_BYTES >> 20} MiB" in PAGE
