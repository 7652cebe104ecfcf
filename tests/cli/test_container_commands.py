"""`podbot ps`, `stop`, `exec` and what `gc` does about containers, against a small service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from screen import until
from service_of_containers import ServiceOfContainers, container, reply, running

from podbot import api
from podbot.cli import main
from podbot.cli.exec import KEYS
from podbot.engine import labels
from podbot.errors import ContainerError, Kind
from podbot.launch import containers


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceOfContainers]:
    with running() as made:
        monkeypatch.setenv("PODBOT_ENGINE_SOCKET", made.url)
        yield made


@pytest.fixture(scope="module")
def dead() -> str:
    """The label of a process that is no more."""
    code = "from podbot.engine import labels; print(labels.owner_label())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def alive() -> str:
    return labels.owner_label()


def outcome(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().out


# ps


def test_ps_shows_whose_containers_there_are(
    service: ServiceOfContainers, alive: str, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [
        container("mine", alive, Created=5),
        container("left", dead, State="exited", Created=4),
        container("far", "1/other/boot/1/2/3", Created=3),
        container("theirs", None),
    ]

    shown = outcome(capsys, "ps").splitlines()
    told = json.loads(outcome(capsys, "ps", "--json"))["containers"]

    assert [line.split()[0] for line in shown] == ["NAME", "mine", "left", "far"]
    assert f"pid {os.getpid()}" in shown[1] and "gone" in shown[2] and "elsewhere" in shown[3]
    assert [(each["name"], each["running"]) for each in told] == [
        ("mine", True), ("left", False), ("far", True),
    ]  # fmt: skip
    assert told[0]["owner"] == {"pid": os.getpid(), "state": "alive"}
    assert [each["owner"]["state"] for each in told] == ["alive", "dead", "unknown"]


def test_ps_shows_the_session_that_a_container_works_for(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = {labels.OWNER: alive, labels.KIND: "sandbox", labels.SESSION: "the-session"}
    of_tools = container("tools", alive, Created=5, Labels=marks)
    service.containers = [of_tools, container("other", alive, Created=4)]

    shown = outcome(capsys, "ps").splitlines()
    told = json.loads(outcome(capsys, "ps", "--json"))["containers"]

    assert "SESSION" in shown[0] and "the-session" in shown[1]
    assert [each["session"] for each in told] == ["the-session", None]


def test_ps_says_that_there_is_nothing(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(capsys, "ps") == "podbot has no containers\n"
    assert json.loads(outcome(capsys, "ps", "--json")) == {"containers": []}


def test_the_engine_may_be_named(
    service: ServiceOfContainers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PODBOT_ENGINE_SOCKET", "/no/such/socket")
    assert main(["ps"]) == 2
    assert "/no/such/socket" in capsys.readouterr().err

    assert outcome(capsys, "ps", "--engine", service.url) == "podbot has no containers\n"


def test_a_name_from_outside_cannot_command_the_terminal(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [container("a\x1b[2Jb", alive)]

    assert "\x1b" not in outcome(capsys, "ps")


# stop


def test_stop_ends_one_by_its_name_or_the_start_of_its_id(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = container("one", alive)
    service.containers = [one, container("two", alive), container("theirs", None)]

    assert outcome(capsys, "stop", str(one["Id"])) == "removed  one\n"
    assert outcome(capsys, "stop", "two") == "removed  two\n"
    assert [each["Names"] for each in service.containers] == [["/theirs"]]
    assert service.query("stop") == {"t": "0"}  # a guest heeds no polite signal


def test_an_agent_is_asked_to_end_first_and_may_be_kept(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = {labels.OWNER: alive, labels.KIND: "agent"}
    service.containers = [container("agent", alive, Labels=marks)]

    assert outcome(capsys, "stop", "--keep", "agent") == "stopped  agent\n"

    assert service.query("stop") == {"t": "10"}
    assert "DELETE" not in " ".join(service.paths())


def test_stop_takes_a_part_of_an_id_that_is_long_enough(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [
        container("one", alive, Id="abcd1" + "0" * 59),
        container("two", alive, Id="abcd2" + "0" * 59),
    ]

    assert outcome(capsys, "stop", "abcd1") == "removed  one\n"
    assert main(["stop", "ab"]) == 2
    assert "no container ab" in capsys.readouterr().err


def test_stop_refuses_what_it_cannot_tell_or_must_not_touch(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [
        container("one", alive, Id="abcd1" + "0" * 59),
        container("two", alive, Id="abcd2" + "0" * 59),
        container("theirs", None),
    ]

    told = json.loads(outcome(capsys, "stop", "--json", "abcd", "theirs", "none", "one", code=2))

    kinds = [each["kind"] for each in told["failed"]]
    assert kinds == ["ambiguous_id", "container_not_found", "container_not_found"]
    assert "two" in told["failed"][0]["remedy"]
    assert "podbot did not make it" in told["failed"][1]["message"]
    assert [each["name"] for each in told["stopped"]] == ["one"]  # the others keep it not
    assert len(service.containers) == 2


def test_stop_all_ends_all_and_says_so_if_there_are_none(
    service: ServiceOfContainers, alive: str, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [
        container("one", alive), container("two", dead, State="exited"), container("theirs", None)
    ]  # fmt: skip

    assert sorted(outcome(capsys, "stop", "--all").split()) == ["one", "removed", "removed", "two"]
    assert outcome(capsys, "stop", "--all") == "podbot has no containers\n"
    assert json.loads(outcome(capsys, "stop", "--all", "--json"))["stopped"] == []


@pytest.mark.parametrize("words", [(), ("--all", "name")])
def test_stop_wants_names_or_all(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", *words]) == 2
    assert "remedy" in capsys.readouterr().err


@pytest.mark.parametrize("status, kind", [(404, None), (304, None), (500, Kind.ENGINE_FAILED)])
def test_a_container_that_went_by_itself_is_stopped(
    service: ServiceOfContainers, alive: str, status: int, kind: Kind | None
) -> None:
    service.containers = [container("one", alive)]
    service.on(r"POST .*/stop", reply({"message": "it is gone"} if status != 304 else b"", status))

    if kind is None:
        assert api.stop("one").name == "one"
    else:
        with pytest.raises(ContainerError) as caught:
            api.stop("one")
        assert caught.value.kind is kind


def test_a_container_that_is_frozen_is_stopped_for_real(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [container("one", alive, State="paused")]
    service.on(r"POST .*/unpause", reply(b"", 204))
    service.on(r"POST .*/stop", reply({"message": "it is in an improper state"}, 409))

    assert outcome(capsys, "stop", "one") == "removed  one\n"

    assert service.paths()[-3:-1] == ["POST unpause", "POST stop"]
    assert service.containers == []


def test_one_that_cannot_be_stopped_keeps_no_other_running(
    service: ServiceOfContainers, alive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = container("stuck", alive, Created=9)
    service.containers = [stuck, container("one", alive)]
    service.on(f"POST .*/{stuck['Id']}/stop", reply({"message": "it is stuck"}, 500))

    with pytest.raises(ContainerError, match="it is stuck"):
        api.stop_all()

    assert service.containers == [stuck]


def test_a_mark_that_an_image_brings_makes_nothing_podbots(
    service: ServiceOfContainers, alive: str, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as an image that somebody made of a container of podbot's."""
    service.images = {
        "sha256:bad": {"Id": "sha256:bad", "Config": {"Labels": {labels.OWNER: dead}}},
        "sha256:good": {"Id": "sha256:good", "Config": {"Labels": None}},
    }
    service.containers = [
        container("theirs", dead, ImageID="sha256:bad"),
        container("mine", alive, ImageID="sha256:bad"),
        container("left", dead, ImageID="sha256:good"),
        container("lost", dead, ImageID="sha256:gone"),
    ]

    assert {each.name for each in api.ps()} == {"mine", "left", "lost"}
    assert sorted(api.sweep().containers) == ["left", "lost"]
    assert main(["stop", "theirs"]) == 2
    assert "podbot did not make it" in capsys.readouterr().err
    assert [each.name for each in api.stop_all()] == ["mine"]
    assert [each["Names"] for each in service.containers] == [["/theirs"]]


def test_an_image_that_cannot_be_looked_at_has_nothing_removed(
    service: ServiceOfContainers, dead: str
) -> None:
    service.containers = [container("left", dead, ImageID="sha256:odd")]
    service.on(r"GET .*/images/.+/json", reply({"message": "no"}, 500))

    assert "no" in str(api.sweep().problem)
    assert len(service.containers) == 1


# exec


def test_exec_joins_the_streams_and_gives_the_exit_code(
    service: ServiceOfContainers, alive: str, capfd: pytest.CaptureFixture[str]
) -> None:
    service.containers = [container("one", alive)]
    read, write = os.pipe()
    os.write(write, b"typed\n")
    os.close(write)
    command = ("sh", "-c", "cat; echo err >&2; exit 7")
    request = api.ExecRequest("one", command)

    try:
        assert api.exec(request, api.Streams(read, 1, 2)) == 7
    finally:
        os.close(read)

    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("typed\n", "err\n")


@pytest.fixture
def no_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard input that has ended."""
    kept, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    yield
    os.dup2(kept, 0)
    for fd in (kept, null):
        os.close(fd)


@pytest.mark.parametrize(
    "words",
    [
        ("one", "--env", "A=1", "--env", "B", "--workdir=/", "--", "sh", "-c", "echo $A$B; pwd"),
        ("--env", "A=1", "one", "--env=B", "--workdir", "/", "--", "sh", "-c", "echo $A$B; pwd"),
        ("--env", "A=1", "--env=B", "--workdir=/", "one", "sh", "-c", "echo $A$B; pwd"),
    ],
)
def test_exec_takes_options_on_either_side_of_the_name(
    service: ServiceOfContainers,
    alive: str,
    words: tuple[str, ...],
    no_input: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    service.containers = [container("one", alive)]
    monkeypatch.setenv("B", "2")

    assert main(["exec", *words]) == 0
    assert capfd.readouterr().out == "12\n/\n"


def test_exec_detached_waits_and_shows_nothing(
    service: ServiceOfContainers, alive: str, capfd: pytest.CaptureFixture[str]
) -> None:
    service.containers = [container("one", alive)]

    assert main(["exec", "one", "-d", "--user=0", "--", "sh", "-c", "echo x; exit 3"]) == 3

    assert capfd.readouterr().out == ""
    asked = next(each for each in service.asked if each.path.endswith("/exec")).json()
    assert asked["User"] == "0" and asked["AttachStdin"] is False and asked["Tty"] is False


def test_exec_tells_what_it_could_not_do(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exec", "none", "--", "true"]) == 125
    assert "podbot ps" in capsys.readouterr().err
    assert main(["exec", "none"]) == 125
    assert "no command" in capsys.readouterr().err
    assert main(["exec", "none", "--env", "NO_SUCH_VARIABLE", "--", "true"]) == 125
    assert "NO_SUCH_VARIABLE: there is no such variable" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["exec", "none", "--no-such-option", "--", "true"])
    assert "the command comes after --" in capsys.readouterr().err


# gc


def test_gc_removes_what_dead_owners_left_and_nothing_else(
    service: ServiceOfContainers, alive: str, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def kinds(*options: str) -> dict[str, str]:
        told = json.loads(outcome(capsys, "gc", "--json", *options))
        lines = [each for each in told["found"] if each["kind"] == "container"]
        return {each["path"]: each["fate"] for each in lines}

    service.containers = [
        container("mine", alive), container("left", dead), container("far", "1/other/boot/1/2/3"),
        container("theirs", None),
    ]  # fmt: skip
    expected = {"left": "removed", "mine": "live", "far": "live"}

    assert kinds("--dry-run") == expected
    assert len(service.containers) == 4
    assert "would remove  container left" in outcome(capsys, "gc", "--dry-run")
    assert kinds() == expected
    assert len(service.containers) == 3
    assert kinds() == {"mine": "live", "far": "live"}


def test_gc_says_what_kept_it_from_looking_and_does_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODBOT_ENGINE_SOCKET", "/no/such/socket")

    assert main(["gc"]) == 2

    shown = capsys.readouterr()
    assert "containers could not be looked at" in shown.err and "/no/such/socket" in shown.err
    assert "removed: " in shown.out


def test_gc_is_silent_where_there_is_no_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: object) -> None:
        raise ContainerError("none was found", kind=Kind.NO_ENGINE)

    monkeypatch.setattr(containers, "connect", connect)

    assert main(["gc"]) == 0
    assert capsys.readouterr().err == ""


def test_an_engine_that_is_open_is_used_and_stays_open(
    service: ServiceOfContainers, alive: str
) -> None:
    from podbot import engine

    service.containers = [container("one", alive)]
    with engine.connect(service.url) as opened:
        assert [each.name for each in api.ps(opened)] == ["one"]
        assert [each.name for each in api.stop_all(opened)] == ["one"]
        assert api.ps(opened) == ()


def test_a_name_that_the_api_has_not_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no_such_call"):
        api.no_such_call  # noqa: B018 - looking is what is tried


def told_by_exec(capfd: pytest.CaptureFixture[str], *words: str, code: int) -> dict[str, object]:
    """What ``podbot exec --json`` tells, behind what the command says itself."""
    assert main(["exec", "--json", *words]) == code
    shown = capfd.readouterr()
    *others, last = shown.err.splitlines()
    found: dict[str, object] = json.loads(last)
    return {**found, "out": shown.out, "err": others}


def test_exec_as_data_is_one_line_behind_what_the_command_says(
    service: ServiceOfContainers, alive: str, no_input: None, capfd: pytest.CaptureFixture[str]
) -> None:
    service.containers = [container("one", alive)]

    script = "echo out; echo err >&2; exit 3"
    told = told_by_exec(capfd, "--user", "0", "one", "--", "sh", "-c", script, code=3)

    assert (told["out"], told["err"]) == ("out\n", ["err"])
    assert (told["outcome"], told["exit_status"], told["error"]) == ("ended", 3, None)
    assert told["command"] == ["sh", "-c", script]
    assert (told["container"], told["user"], told["workdir"]) == ("one", "0", None)


def test_exec_as_data_has_the_same_keys_whatever_came_of_it(
    service: ServiceOfContainers, alive: str, no_input: None, capfd: pytest.CaptureFixture[str]
) -> None:
    service.containers = [container("one", alive), container("left", alive, State="exited")]
    unset = ("--env", "NO_SUCH_VARIABLE")

    found = [
        told_by_exec(capfd, *unset, "one", "--", "true", code=0),
        told_by_exec(capfd, "-d", "one", "--", "sh", "-c", "echo x; exit 4", code=4),
        told_by_exec(capfd, "none", "--", "true", code=125),
        told_by_exec(capfd, "left", "--", "true", code=125),
        told_by_exec(capfd, "--workdir", "here", "one", "--", "true", code=125),
        told_by_exec(capfd, "one", code=125),
    ]

    assert {frozenset(each) for each in found} == {frozenset((*KEYS, "out", "err"))}
    assert [each["outcome"] for each in found] == ["ended"] * 2 + ["failed"] * 4
    assert [each["exit_status"] for each in found] == [0, 4, None, None, None, None]
    assert all((each["out"], each["err"]) == ("", []) for each in found)
    kinds = [each["error"]["kind"] for each in found[2:] if isinstance(each["error"], dict)]
    assert kinds == ["container_not_found", "container_not_running", "bad_cwd", "invalid"]
    assert main(["exec", "one", "ls", "--json"]) != 125  # an option of the command's


def test_exec_as_data_says_that_it_left_a_command_it_was_not_let_wait_for(
    service: ServiceOfContainers, alive: str, tmp_path: Path
) -> None:
    service.containers = [container("one", alive)]
    gate = tmp_path / "gate"
    gate.touch()
    program = "import sys; from podbot.cli import main; sys.exit(main())"
    wait = f"while [ -e {gate} ]; do sleep 0.05; done"
    words = ["exec", "--json", "--detach", "one", "--", "sh", "-c", wait]
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        until(lambda: "POST start" in service.paths())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        gate.unlink()

    told = json.loads(said)
    assert (process.returncode, told["outcome"], tuple(told)) == (143, "left", KEYS)
