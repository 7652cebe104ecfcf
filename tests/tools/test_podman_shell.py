"""`podman_shell` on machines without an engine: what it decides, with plain processes below."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from stand_in import PlainContainer
from workplace import DEADLINE, running, unique_sleep, wait_for

from podbot.errors import PromptError
from podbot.prompt import Cancellation, Deadline, Prompt
from podbot.prompt.builtins import podman
from podbot.prompt.builtins.podman import PodmanShellResult, PodmanShellSection
from podbot.prompt.result import ToolResult
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import LocalSandbox
from podbot.sandbox.container import sandbox as backend


class Shell:
    """A section, and a short way to call its tool."""

    def __init__(self, session: Session, **options: Any):
        self.session = session
        self.section = PodmanShellSection(**options)
        self.prompt = Prompt(ns="tests", key="shell", sections=[self.section])

    def call(self, action: str, **arguments: object) -> ToolResult[Any]:
        return self.prompt.call(
            "podman_shell", {"action": action, **arguments}, session=self.session
        )

    def exec(self, command: str, **arguments: object) -> PodmanShellResult:
        result = self.call("exec", command=command, **arguments)
        value = result.value
        assert isinstance(value, PodmanShellResult), result.message
        assert result.success == (value.exit_code == 0)
        return value


@pytest.fixture
def session() -> Session:
    return Session(bus=InProcessEventBus(), session_id="one")


@pytest.fixture(autouse=True)
def containers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlainContainer]]:
    monkeypatch.setattr(backend, "ContainerSandbox", PlainContainer)
    PlainContainer.made.clear()
    yield PlainContainer.made
    for container in PlainContainer.made:
        container.close()


def test_exec_starts_the_container_and_uses_it_again(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session)
    assert containers == []
    done = shell.exec("echo out; echo err >&2; echo kept > file")
    assert (done.action, done.container_name) == ("exec", "wai-shell-one")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)
    assert shell.exec("cat file").stdout == "kept\n"
    (container,) = containers
    assert container.options["image"] == "docker.io/library/python:3.12"
    assert container.options["name"] == "wai-shell-one"
    shell.section.close()
    assert container.closed


def test_start_and_stop_tell_nothing_but_the_container(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session, name_prefix="mine")
    for action in ("stop", "start", "start", "stop", "stop"):
        result = shell.call(action)
        assert result.success
        assert result.value == PodmanShellResult(action, "mine-one", None, None, None)
    assert len(containers) == 1 and containers[0].closed
    shell.exec("true")
    assert len(containers) == 2
    shell.section.close()


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("exit 3", 3, "the command exited with 3"),
        ("echo why >&2; exit 1", 1, "why\nthe command exited with 1"),
        ("no-such-command", 127, "not found"),
    ],
)
def test_a_command_that_fails_is_a_failing_result(
    session: Session, command: str, code: int, said: str
) -> None:
    shell = Shell(session)
    result = shell.call("exec", command=command)
    assert not result.success
    assert result.value.exit_code == code
    assert said in result.value.stderr
    shell.section.close()


def test_a_command_that_takes_too_long_is_killed(session: Session) -> None:
    shell = Shell(session)
    sleep = unique_sleep()
    for seconds in (1, 10, 100):  # a busy machine may need more than one to begin
        result = shell.call("exec", command=f"echo begun; {sleep}", timeout_seconds=seconds)
        assert not result.success
        assert f"killed after {seconds} s" in result.value.stderr
        if result.value.stdout:
            break
    assert result.value.stdout == "begun\n"
    wait_for(lambda: shell.exec(running(sleep)).stdout == "0\n")
    shell.section.close()


@pytest.mark.parametrize(
    ("asked", "given"), [({}, 60), ({"timeout_seconds": 5}, 5), ({"timeout_seconds": 3600}, 3600)]
)
def test_a_command_has_a_minute_unless_the_call_says_otherwise(
    session: Session, monkeypatch: pytest.MonkeyPatch, asked: dict[str, int], given: int
) -> None:
    seen: list[object] = []
    real = PlainContainer.exec

    def spy(self: PlainContainer, argv: Any, **options: Any) -> Any:
        seen.append(options["timeout"])
        return real(self, argv, **options)

    monkeypatch.setattr(PlainContainer, "exec", spy)
    shell = Shell(session)
    shell.exec("true", **asked)
    assert seen == [given]
    shell.section.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "exec"},
        {"action": "exec", "command": "  "},
        {"action": "restart"},
        {"action": "exec", "command": "true", "timeout_seconds": 0},
        {"action": "exec", "command": "true", "timeout_seconds": 1.5},
        {"action": "exec", "command": "true", "shell": "bash"},
    ],
)
def test_what_makes_no_sense_is_told(
    session: Session, containers: list[PlainContainer], arguments: dict[str, object]
) -> None:
    shell = Shell(session)
    result = shell.prompt.call("podman_shell", arguments, session=session)
    assert not result.success
    assert "remedy" in result.message
    assert containers == []
    shell.section.close()


def test_whatever_goes_wrong_is_said_in_stderr(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session)
    result = shell.call("exec", command=" ")
    assert not result.success and "exec needs a command" in result.value.stderr
    assert (result.value.stdout, result.value.exit_code) == (None, None)
    shell.section.close()
    closed = shell.call("start")
    assert not closed.success and "this section is closed" in closed.value.stderr
    assert containers == []


def test_output_is_cut_at_the_budget_of_the_section(session: Session) -> None:
    shell = Shell(session, output_bytes=100)
    done = shell.exec("printf 'é%.0s' $(seq 100); printf 'x%.0s' $(seq 100) >&2")
    assert done.stdout is not None and len(done.stdout.encode()) <= 100
    assert done.stdout.endswith("é[truncated]")
    assert done.stderr == "x" * 100
    shell.section.close()


def test_the_environment_is_what_the_section_was_given(
    session: Session, containers: list[PlainContainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "xx_XX")
    shell = Shell(session, environment={"GIVEN": "yes"})
    assert shell.exec('echo "$GIVEN $LANG"').stdout == "yes \n"
    shell.section.close()


def test_commands_start_in_the_workdir(session: Session) -> None:
    shell = Shell(session, workdir="/usr")
    assert shell.exec("pwd").stdout == "/usr\n"
    shell.section.close()
    shell = Shell(session, workdir="/no/such/folder")
    result = shell.call("exec", command="pwd")
    assert not result.success and "/no/such/folder" in result.value.stderr
    shell.section.close()


@pytest.mark.parametrize(
    "options",
    [
        {"name_prefix": "a b"},
        {"name_prefix": ""},
        {"workdir": "relative"},
        {"timeout": timedelta(0)},
        {"output_bytes": 5},
        {"image": ""},
        {"image": " "},
        {"image": None},
        {"environment": {"A": 1}},
        {"environment": {1: "a"}},
        {"environment": {"": "a"}},
        {"environment": {"A=B": "a"}},
        {"environment": ["A"]},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match=next(iter(options))):
        PodmanShellSection(**options)


def test_a_value_that_is_no_text_is_not_shown() -> None:
    environment: Any = {"TOKEN": b"hunter2"}
    with pytest.raises(PromptError, match="TOKEN") as raised:
        PodmanShellSection(environment=environment)
    assert "hunter2" not in str(raised.value)


def test_no_two_commands_run_at_once(session: Session) -> None:
    shell = Shell(session)
    script = "mkdir lock || echo overlap; sleep 0.05; rmdir lock"
    outputs: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: outputs.append(shell.exec(script).stdout)) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [""] * 5
    shell.section.close()


def test_a_container_whose_time_is_up_is_removed(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session, timeout=timedelta(seconds=0.5))
    shell.call("start")
    wait_for(lambda: containers[0].closed)
    result = shell.call("exec", command="sleep 60")  # in a new one, whose time is up too
    assert not result.success
    assert "was removed" in result.value.stderr and "exec again" in result.value.stderr
    shell.section.close()


def test_a_container_that_is_stopped_in_time_is_left_alone(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session, timeout=timedelta(hours=1))
    before = set(threading.enumerate())
    shell.call("start")
    (timer,) = set(threading.enumerate()) - before
    assert isinstance(timer, threading.Timer)
    shell.call("stop")
    wait_for(lambda: not timer.is_alive())
    shell.section.close()


def test_each_session_has_its_own_container(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session)
    shell.exec("echo secret > file")
    bus = InProcessEventBus()
    other = session.clone(bus=bus, session_id="two")
    result = shell.prompt.call(
        "podman_shell", {"action": "exec", "command": "cat file"}, session=other
    )
    assert not result.success
    clone = shell.section.clone(session=other, bus=bus)
    assert clone.session is other
    assert [container.options["name"] for container in containers] == [
        "wai-shell-one", "wai-shell-two",
    ]  # fmt: skip
    clone.close()
    shell.section.close()
    assert all(container.closed for container in containers)


def test_a_closed_section_starts_nothing(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session)
    shell.section.close()
    shell.section.close()
    assert "closed" in shell.call("exec", command="true").message
    assert containers == []


def test_collecting_the_section_stops_its_container(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session)
    shell.exec("true")
    del shell
    gc.collect()
    assert containers[0].closed


def test_closing_does_not_wait_for_a_command(
    session: Session, containers: list[PlainContainer]
) -> None:
    shell = Shell(session)
    results: list[ToolResult[Any]] = []
    thread = threading.Thread(
        target=lambda: results.append(
            shell.call("exec", command="touch begun; sleep 600", timeout_seconds=600)
        )
    )
    thread.start()
    wait_for(lambda: containers and containers[0].exists("begun"))
    shell.section.close()
    thread.join(DEADLINE)
    assert not thread.is_alive() and not results[0].success
    assert "this section is closed" in results[0].message


def test_a_call_that_began_before_the_section_was_closed_starts_nothing(
    session: Session, containers: list[PlainContainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(session)
    real = podman._Shells._of

    def closing(self: podman._Shells, session_id: str, name: str) -> podman._Shell:
        found = real(self, session_id, name)
        shell.section.close()
        return found

    monkeypatch.setattr(podman._Shells, "_of", closing)
    result = shell.call("exec", command="true")
    assert not result.success and "this section is closed" in result.message
    assert containers == []


def test_a_container_that_was_being_started_when_the_section_was_closed_runs_nothing(
    session: Session, containers: list[PlainContainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(session)
    closing = threading.Thread(target=shell.section.close)
    over = threading.Event()
    real_stop, real_init = podman._Shell.stop, PlainContainer.__init__

    def stop(self: podman._Shell) -> None:
        over.set()
        real_stop(self)

    def started(self: PlainContainer, *arguments: Any, **options: Any) -> None:
        real_init(self, *arguments, **options)
        closing.start()
        assert over.wait(DEADLINE)

    monkeypatch.setattr(podman._Shell, "stop", stop)
    monkeypatch.setattr(PlainContainer, "__init__", started)
    result = shell.call("exec", command="touch ran; sleep 600", timeout_seconds=600)
    closing.join(DEADLINE)
    assert not result.success and "this section is closed" in result.message
    assert [container.closed for container in containers] == [True]


def test_cancelling_kills_the_command(session: Session, containers: list[PlainContainer]) -> None:
    shell = Shell(session)
    cancellation = Cancellation()
    results: list[ToolResult[Any]] = []
    sleep = unique_sleep()

    def run() -> None:
        arguments = {"action": "exec", "command": f"touch begun; {sleep}"}
        results.append(
            shell.prompt.call("podman_shell", arguments, session=session, cancellation=cancellation)
        )

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: containers and containers[0].exists("begun"))
    cancellation.cancel()
    thread.join(DEADLINE)
    assert not results[0].success and "cancelled" in results[0].message
    assert "cancelled" in results[0].value.stderr
    with LocalSandbox() as other:
        wait_for(lambda: other.exec(["sh", "-c", running(sleep)]).stdout == "0\n")
    shell.section.close()


def test_a_deadline_is_kept(session: Session) -> None:
    shell = Shell(session)
    shell.call("start")
    result = shell.prompt.call(
        "podman_shell",
        {"action": "exec", "command": "sleep 60"},
        session=session,
        deadline=Deadline.after(0.5),
    )
    assert not result.success
    shell.section.close()


def test_an_engine_that_is_not_there_is_a_failing_result(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    shell = Shell(session, engine="unix:///no/such.sock")
    for action in ("start", "exec"):
        result = shell.call(action, command="true")
        assert not result.success
        assert "/no/such.sock" in result.value.stderr
        assert result.value.exit_code is None
    assert shell.call("stop").success
    shell.section.close()


def test_results_read_well() -> None:
    started = PodmanShellResult("start", "c", None, None, None)
    assert started.render() == "container c"
    done = PodmanShellResult("exec", "c", "out", "", 1)
    assert done.render() == "container c\nexit code 1\nstdout:\nout"
    assert podman._cut(b"\xff" * 12, 20) == "\ufffd" * 3 + "[truncated]"


def test_the_section_says_what_it_is(session: Session) -> None:
    shell = Shell(session)
    assert [tool.name for tool in shell.prompt.tools] == ["podman_shell"]
    text = shell.prompt.render(session=session).text
    assert "without network" in " ".join(text.split())
    shell.section.close()
