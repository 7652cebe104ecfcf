"""`podbot mcp --backend container`: the SDK's own client drives every tool in a container."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import own_project
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from services import Service

from podbot.changes.capture import capture
from podbot.runs import records

pytestmark = [pytest.mark.e2e, pytest.mark.podman]


@pytest.fixture
def project() -> Iterator[Path]:
    with own_project({"notes.txt": "first\nsecond\n"}) as made:
        yield made


@pytest.mark.engines("rootful", "rootless", "docker")
def test_every_tool_works_in_a_container_and_the_changes_are_kept(
    service: Service, project: Path
) -> None:
    before = set(service.containers("label=podbot.owner"))
    asyncio.run(drive(service, project))

    [entry] = records.entries()
    assert entry.status == "ended"
    assert entry.record is not None and entry.record.backend == "container"
    assert entry.layer is not None
    changed = {change.path: change.kind for change in capture(entry.layer).changes}
    assert set(changed) == {"notes.txt", "made", "made/one.txt"}
    assert (project / "notes.txt").read_text() == "first\nsecond\n"
    deadline = time.monotonic() + 60
    while not set(service.containers("label=podbot.owner")) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.2)


async def drive(service: Service, project: Path) -> None:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "podbot", "mcp", "--backend", "container", "--image", service.image],
        cwd=project,
        env={**os.environ},
    )
    async with Client(stdio_client(parameters)) as client:

        async def said(tool: str, /, **arguments: object) -> str:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result
            return result.content[0].text  # type: ignore[union-attr]  # all of these are text

        assert "in a container" in (client.instructions or "")
        assert "notes.txt" in await said("ls")
        assert "   2 | second" in await said("read_file", file_path="/workspace/notes.txt")
        await said("write_file", file_path="made/one.txt", content="one\n")
        await said("edit_file", file_path="notes.txt", old_string="first", new_string="1st")
        assert "made/one.txt" in await said("glob", pattern="**/*.txt")
        assert "notes.txt:1:1st" in await said("grep", pattern="1.t")
        assert "1st\nsecond\n/workspace\n" in await said(
            "shell_execute", command=["sh", "-c", "cat notes.txt; pwd; touch gone"]
        )
        assert "value: 42" in await said("evaluate_python", code="6 * 7")
        await said("rm", path="gone")
