"""`podbot mcp` as clients use it: a real process, driven over its stdin and stdout."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
from functools import partial
from pathlib import Path

import anyio
import pytest
from mcp_clients import DEADLINE, PODBOT, Bare, running, served, text_of, until

from podbot.changes.capture import capture
from podbot.runs import records

FILE_TOOLS = {"ls", "read_file", "write_file", "edit_file", "glob", "grep", "rm"}
COMMAND_TOOLS = {"shell_execute", "evaluate_python"}


def long_command() -> list[str]:
    """A command that nobody else runs, and that would take an hour."""
    return ["sleep", f"36{secrets.randbelow(90) + 10}.{secrets.randbelow(10**9)}"]


def slow(value: object) -> object:
    """A parameter of the tests that `make test` leaves out: each server loads the SDK anew."""
    return pytest.param(value, marks=pytest.mark.slow)


# Every tool, on each backend


@pytest.mark.parametrize("backend", [slow("memory"), slow("local"), "overlay"])
def test_the_sdks_own_client_drives_every_tool(backend: str, project: Path, tmp_path: Path) -> None:
    options = ("--backend", backend, "--target", str(project))
    with served(*options, cwd=tmp_path, errors=tmp_path / "errors") as server:
        tools = {tool.name for tool in server.do(server.client.list_tools).tools}
        assert tools == FILE_TOOLS | (set() if backend == "memory" else COMMAND_TOOLS)
        assert "workspace" in (server.client.instructions or "")

        assert "notes.txt  13 bytes" in server.said("ls")
        assert "   2 | second" in server.said("read_file", file_path="notes.txt")
        server.said("write_file", file_path="new/one.txt", content="eins\nzwei\n")
        server.said("edit_file", file_path="notes.txt", old_string="first", new_string="1st")
        assert server.said("glob", pattern="**/*.txt").endswith("new/one.txt\nnotes.txt")
        assert "new/one.txt:2:zwei" in server.said("grep", pattern="z.ei")
        server.said("rm", path="src")
        if backend != "memory":
            shown = server.said("shell_execute", command=["sh", "-c", "cat notes.txt; pwd"])
            assert f"1st\nsecond\n{project}\n" in shown
            assert "value: 42" in server.said("evaluate_python", code="6 * 7")
        assert "new/" in server.said("ls") and "src" not in server.said("ls")

    changed = (project / "notes.txt").read_text() == "1st\nsecond\n"
    assert changed == (backend == "local")  # the others leave the folder as it is
    assert (project / "src").exists() == (not changed)


def test_errors_progress_data_and_cancellation_on_one_server(project: Path, tmp_path: Path) -> None:
    with served("--data", cwd=project, errors=tmp_path / "errors") as server:
        # What a model does wrong is an answer that tells it what to do.
        assert "is no parameter" in server.refused("ls", folder="src")
        assert "ls or glob" in server.refused("read_file", file_path="missing")
        assert "file_path" in server.refused("read_file")
        assert "10000000" in server.refused("ls", path="x" * 10_000_000).replace(",", "")
        assert server.refused("shell_execute", command=["true"], timeout_seconds="NaN")

        # Results as data.
        result = server.call("shell_execute", command=["sh", "-c", "echo out; exit 3"])
        assert not result.is_error
        assert result.structured_content["value"]["exit_code"] == 3
        assert result.structured_content["value"]["stdout"] == "out\n"

        # Progress, once a second: the command goes on until it was told of twice.
        told: list[tuple[float, str | None]] = []

        async def slow() -> None:
            enough = anyio.Event()

            async def heard(progress: float, total: float | None, message: str | None) -> None:
                told.append((progress, message))
                if len(told) >= 2:
                    enough.set()

            script = "until test -e enough; do sleep 0.05; done"
            arguments = {"command": ["sh", "-c", script], "timeout_seconds": 120}
            call = partial(server.client.call_tool, progress_callback=heard)
            with anyio.fail_after(DEADLINE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call, "shell_execute", arguments)
                    await enough.wait()
                    made = {"file_path": "enough", "content": ""}
                    await server.client.call_tool("write_file", made)

        server.do(slow)
        assert len(told) >= 2 and told == sorted(told)
        assert "shell_execute has run for" in (told[0][1] or "")

        # A cancelled call: what it started is killed, and the server goes on.
        command = long_command()

        async def cancelled() -> None:
            with anyio.fail_after(DEADLINE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(server.client.call_tool, "shell_execute", {"command": command})
                    while not await asyncio.to_thread(running, *command):
                        await asyncio.sleep(0.02)
                    tasks.cancel_scope.cancel()

        server.do(cancelled)
        until(lambda: not running(*command), "the end of a cancelled command")
        assert "notes.txt" in server.said("ls")


def test_calls_are_served_at_the_same_time(project: Path, tmp_path: Path) -> None:
    # Each of the two waits for what the other one does.
    with served(cwd=project, errors=tmp_path / "errors") as server:

        async def both() -> list[str]:
            script = "touch {0}; until test -e {1}; do sleep 0.05; done; echo met {1}"
            done = await asyncio.gather(
                *(
                    server.client.call_tool(
                        "shell_execute", {"command": ["sh", "-c", script.format(own, other)]}
                    )
                    for own, other in (("a", "b"), ("b", "a"))
                )
            )
            return [text_of(result) for result in done]

        first, second = server.do(both)

    assert "\nmet b\n" in first and "\nmet a\n" in second


# The protocol, byte by byte


def test_stdout_is_the_protocol_and_nothing_else(project: Path) -> None:
    with Bare("--backend", "local", "--target", str(project), cwd=project) as client:
        greeting = client.greet()["result"]
        assert greeting["serverInfo"]["name"] == "podbot"
        assert greeting["protocolVersion"] == "2025-06-18"
        # The guest's own stdout, which a careless child might print to.
        stray = client.call("shell_execute", command=["sh", "-c", "echo stray >/proc/$PPID/fd/1"])
        assert "exit code 0" in client.answer(stray)["result"]["content"][0]["text"]
        client.write(b"this is not JSON\n[1, 2]\n\n")
        client.write(b'{"jsonrpc": "2.0", "id": 77, "method": "no/such"}\n')
        assert client.answer(77)["error"]["code"] == -32601
        refusals = [each for each in client.messages() if each.get("id", 0) is None]
        assert [each["error"]["code"] for each in refusals] == [-32700, -32600]
        unknown = client.answer(client.call("format_disk"))
        assert unknown["error"]["code"] == -32602
        assert "read_file" in unknown["error"]["message"]

        assert client.hang_up() == 0

    client.messages()  # each line of it was one
    assert b"stray\n" in client.errors
    assert b"nothing isolates the tools" in client.errors


@pytest.mark.parametrize("how", ["eof", "SIGTERM", slow("SIGINT")])
def test_the_end_cleans_up_and_keeps_the_changes(how: str, project: Path) -> None:
    command = long_command()
    with Bare(cwd=project) as client:
        client.greet()
        client.answer(client.call("write_file", file_path="made.txt", content="made\n"))
        client.call("shell_execute", command=command)
        until(lambda: running(*command), "the start of the command")
        ours = [entry for entry in records.entries() if entry.targets == (str(project),)]
        assert [entry.live for entry in ours] == [True]

        status = client.hang_up() if how == "eof" else client.tell(signal.Signals[how])

    assert status == (0 if how == "eof" else 128 + signal.Signals[how])
    assert not running(*command)
    assert b"Traceback" not in client.errors
    [entry] = [entry for entry in records.entries() if entry.targets == (str(project),)]
    assert entry.status == "ended"
    assert entry.record is not None and entry.layer is not None
    assert entry.record.exit_status == 0  # both are how a server ends
    assert entry.record.command == ("podbot", "mcp", "--backend", "overlay")
    assert [change.path for change in capture(entry.layer).changes] == ["made.txt"]
    assert f"podbot changes show {entry.id}\n".encode() in client.errors
    assert not (project / "made.txt").exists()


def test_a_server_that_is_killed_leaves_the_changes_and_no_process(project: Path) -> None:
    command = long_command()
    with Bare("--name", "unlucky", cwd=project) as client:
        client.greet()
        client.answer(client.call("write_file", file_path="made.txt", content="made\n"))
        client.call("shell_execute", command=command)
        until(lambda: running(*command), "the start of the command")
        client.tell(signal.SIGKILL)

    until(lambda: not running(*command), "the end of the command")
    entry = records.find("unlucky")
    until(lambda: not records.find("unlucky").live, "the end of the sandbox")
    assert records.find("unlucky").status == "broken off"
    assert entry.layer is not None
    assert [change.path for change in capture(entry.layer).changes] == ["made.txt"]


def test_options_are_kept_to_and_what_changed_nothing_leaves_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSED", "on")
    environment = ("--env", "PASSED", "--env", "SET=so", "--env", "ABSENT")
    with Bare(*environment, "--hide", "src", "--name", "idle", cwd=project) as client:
        client.greet()
        script = "echo $PASSED $SET; ls"
        shown = client.answer(client.call("shell_execute", command=["sh", "-c", script]))
        assert "\non so\nnotes.txt\n" in shown["result"]["content"][0]["text"]
        assert client.hang_up() == 0

    assert client.errors == b"podbot mcp: note: --env ABSENT: there is no such variable here\n"
    assert all(entry.name != "idle" for entry in records.entries())
    assert all(entry.targets != (str(project),) for entry in records.entries())


def test_a_model_is_used_with_a_key_that_no_tool_sees(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "real-5ca1ab1e")
    words = ("--route", "anthropic=env:MY_KEY", "--env", "MY_KEY", "--name", "routed")
    with Bare(*words, cwd=project) as client:
        client.greet()
        script = "env; cat /proc/[0-9]*/environ; touch made"
        shown = client.answer(client.call("shell_execute", command=["sh", "-c", script]))
        text = shown["result"]["content"][0]["text"]
        assert "ANTHROPIC_BASE_URL=http://127.0.0.1:3128/anthropic" in text
        assert "real-5ca1ab1e" not in text and "MY_KEY" not in text
        assert client.hang_up() == 0

    record = records.find("routed").record
    assert record is not None and record.command[-2:] == ("--route", "anthropic")


def test_a_call_has_the_time_that_was_asked_for_and_no_more(project: Path) -> None:
    command = long_command()
    with Bare("--timeout", "1s", cwd=project) as client:
        client.greet()
        answer = client.answer(client.call("shell_execute", command=command))
        assert answer["result"]["isError"]
        assert "deadline" in answer["result"]["content"][0]["text"]
        until(lambda: not running(*command), "the end of the command")
        assert client.hang_up() == 0


# What a person sees who asks for the impossible


def run(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PODBOT, "mcp", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=DEADLINE,
        check=False,
    )


def test_a_target_that_is_missing_is_said_at_once(project: Path) -> None:
    done = run("--target", "nowhere", cwd=project)

    assert (done.returncode, done.stdout) == (2, "")
    assert "podbot mcp: target nowhere does not exist\n  remedy: " in done.stderr


def test_an_option_that_a_backend_cannot_keep_is_refused(project: Path) -> None:
    done = run("--backend", "local", "--net", "none", cwd=project)

    assert (done.returncode, done.stdout) == (2, "")
    assert "the backend local does not support network" in done.stderr


def test_without_the_sdk_the_extra_is_named(project: Path) -> None:
    program = (
        "import sys; sys.modules['mcp'] = None; import podbot.cli; sys.exit(podbot.cli.main())"
    )
    done = subprocess.run(
        [PODBOT[0], "-c", program, "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=project,
        timeout=DEADLINE,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'podbot[mcp]'" in done.stderr


@pytest.mark.parametrize(
    ("closed", "status", "said"),
    [("<&-", 2, "standard input or output is closed"), ("2>&-", 0, "")],
)
def test_streams_that_are_closed_are_no_surprise(
    closed: str, status: int, said: str, project: Path
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *PODBOT, "mcp", "--backend", "memory"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=project,
        timeout=DEADLINE,
        check=False,
    )

    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


def test_a_time_that_makes_no_sense_is_refused(project: Path) -> None:
    done = run("--timeout", "soon", cwd=project)

    assert (done.returncode, done.stdout) == (2, "")
    assert "'soon' is not a length of time" in done.stderr
