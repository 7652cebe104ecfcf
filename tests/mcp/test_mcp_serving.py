"""What is asked for becomes a workspace; a server starts, ends, and leaves what it should."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from cli_runs import PODBOT, Terminal
from mcp_clients import DEADLINE

from podbot.errors import (
    ConfigError,
    Kind,
    LaunchError,
    PodbotError,
    SandboxError,
    ToolValidationError,
)
from podbot.mcp import LaunchRequest, Line, Served, ServeRequest, Started, serve, serving
from podbot.mcp._workspace import KEPT, Workspace, workspace
from podbot.runs import records
from podbot.runs.records import Record
from podbot.runtime.events import ToolInvoked
from podbot.sandbox.backends import ENTRY_POINTS


@pytest.fixture
def gone() -> Iterator[Line]:
    """The line of a client that has hung up already."""
    line = Line(os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY))
    yield line
    line.close()


def said(place: Workspace, tool: str, **arguments: object) -> str:
    """What a tool says; the workspace is closed after it."""
    result = place.prompt.call(tool, arguments)
    assert result.success, result
    return result.render()


def test_names_are_found_when_they_are_used() -> None:
    import podbot.mcp

    homes = {name for names in podbot.mcp._HOMES.values() for name in names.split()}
    assert set(podbot.mcp.__all__) == homes
    assert all(getattr(podbot.mcp, name) is not None for name in podbot.mcp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = podbot.mcp.nonsense  # type: ignore[attr-defined]  # that is the point


def test_a_fault_in_an_import_of_ours_is_not_taken_for_a_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import podbot.mcp

    monkeypatch.delitem(vars(podbot.mcp), "Hints", raising=False)
    monkeypatch.setitem(sys.modules, "podbot.mcp.annotations", None)
    with pytest.raises(ImportError):
        _ = podbot.mcp.Hints


def asked(
    backend: str | None = None, target: Path | None = None, **options: object
) -> ServeRequest:
    targets = () if target is None else (target,)
    launch = LaunchRequest(backend=backend, targets=targets, **options)  # type: ignore[arg-type]
    return ServeRequest(launch)


# Requests


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("local", {"network": "none"}),
        ("local", {"hide": ("/etc/passwd",)}),
        ("memory", {"network": "host"}),
        ("memory", {"environment": {"KEY": "value"}}),
        ("overlay", {"image": "debian"}),
        ("overlay", {"continue_in": "last"}),
        ("overlay", {"timeout": 5.0}),
        ("local", {"name": "mine"}),
    ],
)
def test_what_a_backend_cannot_keep_to_is_refused(backend: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        asked(backend=backend, **options)

    assert caught.value.kind is Kind.UNSUPPORTED
    assert caught.value.field in options
    assert "value" not in str(caught.value)


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="overlay, container, memory, local") as caught:
        asked(backend="moon")

    assert caught.value.kind is Kind.UNKNOWN_BACKEND


@pytest.fixture
def piped_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package were installed that registers a backend called piped."""
    entry = EntryPoint("piped", "piped:PipedLauncher", ENTRY_POINTS)

    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints([entry]).select(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


@pytest.mark.usefixtures("piped_package")
def test_tools_work_on_the_backend_of_another_package() -> None:
    with workspace(asked(backend="piped", environment={"WHO": "me"})).prompt as prompt:
        result = prompt.call("shell_execute", {"command": ["sh", "-c", "echo $WHO > who"]})
        assert result.success, result
        shown = prompt.call("read_file", {"file_path": "who"}).render()

    assert "me" in shown


@pytest.mark.usefixtures("piped_package")
def test_another_packages_backend_that_keeps_nothing_apart_says_so(gone: Line) -> None:
    heard: list[Started] = []

    served = serve(asked(backend="piped"), gone, on_start=heard.append)

    assert served == Served(0)
    assert [(each.backend, each.reviewed) for each in heard] == [("piped", False)]


@pytest.mark.usefixtures("piped_package")
@pytest.mark.parametrize(("option", "value"), [("name", "mine"), ("title", "work")])
def test_what_another_packages_backend_does_not_keep_cannot_be_named(
    gone: Line, option: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        serve(asked(backend="piped", **{option: value}), gone)

    assert (caught.value.kind, caught.value.field) == (Kind.UNSUPPORTED, option)


@pytest.mark.usefixtures("piped_package")
def test_another_packages_backend_is_given_what_was_said_and_refuses_what_it_has_not(
    project: Path, gone: Line
) -> None:
    with pytest.raises(SandboxError, match="has no option 'target'"):
        serve(asked(backend="piped", target=project), gone)


@pytest.mark.usefixtures("piped_package")
def test_of_another_packages_backend_it_is_assumed_that_it_reaches_out() -> None:
    assert asked(backend="piped").reaches_out


def test_podman_is_another_word_for_the_container_backend() -> None:
    request = asked(backend="podman", image="mine")

    assert request.backend == "container"
    assert request == asked(backend="container", image="mine")


def test_only_what_can_reach_out_says_so() -> None:
    assert asked(backend="local").reaches_out
    assert asked(network="host").reaches_out
    assert not asked().reaches_out
    assert not asked(backend="memory").reaches_out


# Workspaces


def test_a_copy_in_memory_is_without_secrets(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    (project / ".ssh").mkdir()
    (project / ".ssh" / "id").write_text("a key")
    (project / ".netrc").write_text("a login")
    (project / "[odd]*").write_text("hidden by request")
    request = asked(backend="memory", target=project, hide=(f"{project}/[odd]*",))

    with workspace(request).prompt as prompt:
        listing = prompt.call("ls", {}).render()

    assert "notes.txt" in listing
    assert all(name not in listing for name in (".ssh", ".netrc", "odd"))


def test_a_folder_that_is_hidden_is_not_copied(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    (project / ".ssh" / "keys").mkdir(parents=True)

    for target in (".ssh", ".ssh/keys"):
        with pytest.raises(LaunchError, match="is hidden from tools") as caught:
            workspace(asked(backend="memory", target=project / target))
        assert caught.value.kind is Kind.TARGET_REFUSED


def test_without_a_target_memory_and_local_have_an_empty_workspace(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("PASSED", "on")
    with workspace(asked(backend="memory")).prompt as prompt:
        assert "notes.txt" not in prompt.call("ls", {}).render()
    request = asked(
        backend="local", environment={"SET": "so"}, pass_environment=("PASSED", "ABSENT")
    )
    with workspace(request).prompt as prompt:
        assert "notes.txt" not in prompt.call("ls", {}).render()
        shown = prompt.call("shell_execute", {"command": ["sh", "-c", "echo $PASSED $SET"]})

    assert "\non so\n" in shown.render()


def test_a_local_folder_is_worked_on_itself_and_says_so(project: Path) -> None:
    place = workspace(asked(backend="local", target=project))
    with place.prompt as prompt:
        assert "Nothing isolates it" in prompt.render().text
        said(place, "shell_execute", command=["sh", "-c", "echo new > made"])
        said(place, "edit_file", file_path="made", old_string="new", new_string="newer")
        assert said(place, "shell_execute", command=["pwd"]).count(str(project)) == 1

    assert (project / "made").read_text() == "newer\n"


def test_a_container_over_a_folder_is_described_before_any_engine_is_asked(project: Path) -> None:
    request = asked(backend="container", target=project, network="host", image="mine")
    with workspace(request).prompt as prompt:
        text = prompt.render().text

    assert f"`{project}`, at `/workspace` in a container" in text
    assert "the network of this machine" in text


def test_a_session_does_not_grow_with_the_calls() -> None:
    place = workspace(asked(backend="memory"))
    with place.prompt as prompt:
        prompt.call("write_file", {"file_path": "a", "content": "text"})
        for number in range(3 * KEPT):
            prompt.call("read_file", {"file_path": "a", "offset": number})
        kinds = place.session.types
        kept = {kind.__name__: len(place.session.slice_of(kind)) for kind in kinds}
        [listed] = place.session.query(ToolInvoked).all()[-1:]

    assert max(kept.values()) <= 2 * KEPT
    assert kept["ToolInvoked"] >= KEPT and kept["ReadFileResult"] >= KEPT
    assert listed.success


# From start to end


def test_a_client_that_is_gone_ends_the_server(project: Path, gone: Line) -> None:
    heard: list[Started] = []

    served = serve(asked(target=project), gone, on_start=heard.append)

    assert served == Served(0)
    assert [(each.backend, each.workdir) for each in heard] == [("overlay", str(project))]


def test_a_signal_before_it_serves_ends_it_too(project: Path, gone: Line) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def told(started: Started) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        serve(asked(target=project), gone, on_start=told)

    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert all(entry.targets != (str(project),) for entry in records.entries())


def test_what_cannot_be_opened_raises_and_leaves_nothing(tmp_path: Path, gone: Line) -> None:
    with pytest.raises(PodbotError) as caught:
        serve(asked(target=tmp_path / "missing"), gone)

    assert caught.value.kind is Kind.TARGET_MISSING


def test_an_engine_that_is_missing_is_said_at_once(
    project: Path, gone: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODBOT_ENGINE_SOCKET", "unix:///no/such.sock")

    with pytest.raises(PodbotError, match=r"/no/such\.sock"):
        serve(asked(backend="container", target=project, image="mine"), gone)


def test_a_fault_of_ours_is_in_the_record(
    project: Path, gone: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(started: Started) -> None:
        [entry] = [entry for entry in records.entries() if entry.targets == (str(project),)]
        assert entry.layer is not None
        (entry.layer.upper(0) / "made").write_text("text")
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError):
        serve(asked(target=project, name="faulty"), gone, on_start=started)

    record = records.find("faulty").record
    assert record is not None
    assert (record.exit_status, record.error) == (1, "RuntimeError: out of luck")


def test_what_cannot_be_cleaned_up_is_told(gone: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    from podbot.tools.unsafe_local import UnsafeLocalSandboxSection

    def close(section: UnsafeLocalSandboxSection) -> None:
        section._finalizer()
        raise ToolValidationError("the workspace could not be removed", remedy="remove it by hand")

    monkeypatch.setattr(UnsafeLocalSandboxSection, "close", close)

    served = serve(asked(backend="local"), gone)

    assert served.exit_status == 0
    assert served.problem is not None and "remove it by hand" in served.problem


def test_at_a_terminal_it_says_what_it_waits_for(project: Path) -> None:
    command = [*PODBOT, "mcp", "--backend", "memory"]
    terminal = Terminal(command, cwd=project)
    terminal.until("waiting for an MCP client", DEADLINE)
    terminal.send("\x04")

    assert terminal.end() == 0


# Records


def test_a_server_is_in_the_books_by_what_was_asked_for(project: Path, gone: Line) -> None:
    found: list[Record | None] = []

    def started(started: Started) -> None:
        [entry] = [entry for entry in records.entries() if entry.targets == (str(project),)]
        found.append(entry.record)

    serve(asked(target=project, command=("podbot", "mcp"), title="tools"), gone, on_start=started)

    assert found[0] is not None
    assert (found[0].command, found[0].title) == (("podbot", "mcp"), "tools")
    assert all(entry.targets != (str(project),) for entry in records.entries())


def test_a_sandbox_that_was_lost_before_it_changed_anything_has_one_record(
    project: Path, gone: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(started: Started) -> None:
        [entry] = [entry for entry in records.entries() if entry.name == "lost"]
        seen.append(entry.id)
        section = workspaces[0].section
        assert section.sandbox is not None
        section.sandbox.close()  # as if it had been lost
        said(workspaces[0], "write_file", file_path="made", content="text")

    seen: list[str] = []
    workspaces: list[Workspace] = []

    def made(request: ServeRequest) -> Workspace:
        workspaces.append(workspace(request))
        return workspaces[0]

    monkeypatch.setattr(serving, "workspace", made)

    served = serve(asked(target=project, name="lost"), gone, on_start=started)

    assert [entry.id for entry in records.entries() if entry.name == "lost"] == [served.changes]
    assert served.changes not in (None, *seen)


def test_a_name_that_is_taken_is_refused_before_anything_is_opened(
    project: Path, gone: Line
) -> None:
    with pytest.raises(PodbotError, match="cannot name a run"):
        serve(asked(target=project, name="last"), gone)


def test_a_server_without_an_overlay_has_no_record(gone: Line) -> None:
    before = len(records.entries())
    assert serve(asked(backend="memory"), gone).changes is None
    assert len(records.entries()) == before
