"""What the contracts of the sections say in names and numbers, line by line."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from stand_in import PlainContainer
from workplace import Place

from podbot import tools
from podbot.prompt.builtins import podman as shell_section
from podbot.prompt.result import ToolResult
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.logging import StructuredLogger
from podbot.runtime.session import Session
from podbot.sandbox.container import sandbox as backend
from podbot.tools import podman, shell, unsafe_local, vfs

NEEDED = dataclasses.MISSING
WORKSPACE = {
    "mounts": (),
    "allowed_host_roots": (),
    "base_environment": None,
    "clock": None,
    "accepts_overrides": False,
}


def needed(names: str) -> dict[str, object]:
    """Fields without a default."""
    return dict.fromkeys(names.split(), NEEDED)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (tools.PodmanSandboxConfig, {**WORKSPACE, "image": "python:3.12-bookworm"}),
        (tools.UnsafeLocalSandboxConfig, {**WORKSPACE, "workspace_root": None}),
        (
            tools.PodmanWorkspace,
            needed(
                "container_id container_name image workdir overlay_path env started_at last_used_at"
            ),
        ),
        (
            tools.UnsafeLocalWorkspace,
            needed("workspace_path workdir env started_at last_used_at"),
        ),
        (
            tools.HostMount,
            {
                "host_path": NEEDED,
                "mount_path": None,
                "include_glob": (),
                "exclude_glob": (),
                "max_bytes": None,
                "follow_symlinks": False,
            },
        ),
        (
            tools.VfsFile,
            needed("path content encoding size_bytes version created_at updated_at"),
        ),
        (
            tools.FileInfo,
            needed("path kind size_bytes version updated_at"),
        ),
        (
            tools.WriteFile,
            {"path": NEEDED, "content": NEEDED, "mode": "create", "encoding": "utf-8"},
        ),
        (tools.DeleteEntry, {"path": NEEDED}),
        (
            tools.ShellResult,
            needed("command cwd exit_code stdout stderr duration_ms timed_out"),
        ),
        (
            ToolResult,
            {
                "message": NEEDED,
                "value": NEEDED,
                "success": True,
                "exclude_value_from_context": False,
            },
        ),
        (
            shell_section.PodmanShellParams,
            {"action": NEEDED, "command": None, "timeout_seconds": None},
        ),
        (
            shell_section.PodmanShellResult,
            needed("action container_name stdout stderr exit_code"),
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_types_have_the_fields_of_the_contract(kind: Any, fields: dict[str, object]) -> None:
    found = {field.name: field.default for field in dataclasses.fields(kind)}
    assert {name: found[name] for name in fields} == fields


def test_the_local_settings_come_in_the_order_of_the_contract(tmp_path: Path) -> None:
    def clock() -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    given = tools.UnsafeLocalSandboxConfig((), (tmp_path,), {"A": "b"}, tmp_path, clock, True)
    assert (given.allowed_host_roots, given.base_environment) == ((tmp_path,), {"A": "b"})
    assert (given.workspace_root, given.clock, given.accepts_overrides) == (tmp_path, clock, True)
    changed = dataclasses.replace(given, workspace_root=None)
    assert (changed.workspace_root, changed.clock) == (None, clock)
    assert dataclasses.replace(changed, clock=None) != changed


def test_the_one_tool_section_takes_what_the_contract_says() -> None:
    parameters = inspect.signature(shell_section.PodmanShellSection).parameters
    for name, default in {
        "image": "docker.io/library/python:3.12",
        "name_prefix": "wai-shell",
        "workdir": None,
        "environment": None,
        "timeout": None,
    }.items():
        assert parameters[name].default == default
    shell_section.PodmanShellSection(timeout=timedelta(seconds=1)).close()


def test_names_of_the_sources_lead_to_the_same_things() -> None:
    assert podman.PodmanShellParams is unsafe_local.LocalShellParams is tools.ShellParams
    assert podman.PodmanShellResult is unsafe_local.LocalShellResult is tools.ShellResult
    for name in (
        "normalize_string_path",
        "normalize_host_root",
        "make_write_reducer",
        "make_delete_reducer",
    ):
        assert callable(getattr(vfs, name))
    assert inspect.isclass(StructuredLogger)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PODBOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def place(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Place]:
    monkeypatch.setattr(backend, "ContainerSandbox", PlainContainer)
    caplog.set_level(logging.INFO, "podbot")
    session = Session(bus=InProcessEventBus(), session_id="logged")
    config = tools.PodmanSandboxConfig(base_environment={"TOKEN": "hunter2-hunter2"})
    made = Place(session, tools.PodmanSandboxSection(session=session, config=config))
    yield made
    made.section.close()


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the container section told of itself."""
    found = [
        {"event": record.event, **record.context}  # type: ignore[attr-defined]  # structured
        for record in caplog.records
        if "component=tools.podman" in record.message
    ]
    assert all(each["session_id"] == "logged" for each in found)
    return found


def test_commands_are_logged_by_their_program_and_end_alone(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.ok("shell_execute", command=["sh", "-c", "echo a secret; exit 3"])
    place.ok("evaluate_python", code="1 + 1")
    told = {each["event"]: each for each in logged(caplog)}
    assert list(told) == ["workspace.opened", "command.ended", "code.ended"]
    command = told["command.ended"]
    assert (command["program"], command["exit_code"], command["timed_out"]) == ("sh", 3, False)
    assert isinstance(command["duration_ms"], int)
    assert (told["code.ended"]["exit_code"], told["code.ended"]["timed_out"]) == (0, False)
    assert "secret" not in caplog.text
    place.ok("shell_execute", command=["hunter2-hunter2"])  # which does not exist
    assert "hunter2" not in caplog.text


def test_an_engine_that_is_not_there_is_logged_too(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "podbot")
    session = Session(bus=InProcessEventBus(), session_id="logged")
    config = tools.PodmanSandboxConfig(engine=f"unix://{tmp_path}/no.sock")
    place = Place(session, tools.PodmanSandboxSection(session=session, config=config))
    place.fails("ls")
    (told,) = logged(caplog)
    assert (told["event"], told["kind"]) == ("workspace.failed", "socket_not_found")
    assert "no.sock" in told["reason"]
    place.section.close()


def test_a_command_that_names_no_timeout_has_30_seconds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    run = shell.run

    def noting(sandbox: Any, command: shell.Command, seconds: float) -> shell.ShellResult:
        seen.append(seconds)
        return run(sandbox, command, seconds)

    monkeypatch.setattr(shell, "run", noting)
    place.ok("shell_execute", command=["true"])
    place.ok("shell_execute", command=["true"], timeout_seconds=0.2)
    place.ok("shell_execute", command=["true"], timeout_seconds=1e9)
    assert seen == [30.0, 1.0, 120.0]


def test_a_longer_read_than_allowed_is_refused_as_an_empty_one_is(place: Place) -> None:
    place.ok("write_file", file_path="long", content="x\n" * 2500)
    for limit in (0, 2001):
        assert "1 to 2000" in place.fails("read_file", file_path="long", limit=limit)
    assert place.ok("read_file", file_path="long", limit=2000).limit == 2000
