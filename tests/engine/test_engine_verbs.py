"""What each verb asks of an engine, and what it makes of the answer.

Against a stand-in, for what differs between engines and versions; tests/e2e has the real ones.
"""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from standin import Answer, Asked, StandIn, chunked, frame, reply
from test_engine_profiles import made_by_docker, made_by_podman

from podbot.engine import (
    TOOLS,
    BuildOrder,
    ContainerSpec,
    Engine,
    Entry,
    ExecSpec,
    containers,
    exit_status,
    pack,
)
from podbot.engine.http.client import Call
from podbot.engine.image.images import split_name
from podbot.errors import ConfigError, ContainerError, Kind, PodbotError
from podbot.frozen import replace

Both = tuple[StandIn, Engine]
NO_CONTAINER = {"cause": "no such container", "message": "no such container", "response": 404}


def kind_of(act: Callable[[], object]) -> Kind:
    with pytest.raises(PodbotError) as caught:
        act()
    return caught.value.kind


@pytest.fixture(params=["podman", "docker"])
def either(request: pytest.FixtureRequest) -> Both:
    """Each engine in turn."""
    found: Both = request.getfixturevalue(request.param)
    return found


# Containers


def answering_create(made: StandIn, found: dict[str, Any] | None = None) -> None:
    podman = "Libpod-Api-Version" in made.ping
    described = found or (made_by_podman() if podman else made_by_docker())
    made.on(r"POST .*/containers/create", reply({"Id": "c1", "Warnings": ["old\x1b kernel"]}, 201))
    made.on(r"GET .*/containers/c1/json", reply(described | {"Id": "c1", "Name": "/n"}))
    made.on(r"DELETE .*/containers/c1", reply(b"", 204))


def test_a_container_is_made_in_the_words_of_its_engine(either: Both) -> None:
    made, engine = either
    answering_create(made)

    created = engine.containers.create(ContainerSpec("img", ("true",), name="n", labels={"a": "b"}))

    assert created.id == "c1" and created.warnings == ("old\\x1b kernel",)
    create = made.asked[-2]
    if engine.facts.is_podman:
        assert create.target == "/v4.0.0/libpod/containers/create"
        assert create.json()["name"] == "n"
        labels = create.json()["labels"]
    else:
        assert create.target == "/v1.44/containers/create?name=n"
        labels = create.json()["Labels"]
    assert isinstance(labels, dict)
    assert labels["a"] == "b" and labels["podbot.owner"].startswith("1/")


def test_a_container_without_a_name_gets_one_from_the_engine(docker: Both) -> None:
    made, engine = docker
    answering_create(made)

    engine.containers.create(ContainerSpec("img"))

    assert made.asked[-2].target == "/v1.44/containers/create"


def test_a_container_that_is_not_what_was_asked_for_is_removed_again(either: Both) -> None:
    made, engine = either
    found = made_by_podman() if engine.facts.is_podman else made_by_docker()
    found["HostConfig"]["Privileged"] = True
    answering_create(made, found)

    assert kind_of(lambda: engine.containers.create(ContainerSpec("img"))) is Kind.PROFILE_MISMATCH

    assert made.paths()[-1].startswith("DELETE ")


def test_limits_that_cannot_be_held_are_told_when_a_container_is_made(podman: Both) -> None:
    made, engine = podman
    answering_create(made)
    engine._facts = replace(engine.facts, rootless=True, cgroup_version=1)

    created = engine.containers.create(ContainerSpec("img"))

    assert created.unenforced == ("cpu", "memory", "pids")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"message": "No such image: img"}, Kind.IMAGE_NOT_FOUND),
        (409, {"message": "Conflict"}, Kind.NAME_IN_USE),
        (500, {"cause": "image not known", "message": "x"}, Kind.IMAGE_NOT_FOUND),
        (500, {"cause": "that name is already in use", "message": "x"}, Kind.NAME_IN_USE),
        (500, {"message": "statfs: no such file"}, Kind.CREATE_FAILED),
        (201, {}, Kind.ENGINE_PROTOCOL),
        (201, [], Kind.ENGINE_PROTOCOL),
    ],
)
def test_a_container_that_cannot_be_made_is_an_error_of_its_kind(
    either: Both, status: int, body: object, kind: Kind
) -> None:
    made, engine = either
    made.on(r"POST .*/containers/create", reply(body, status))

    assert kind_of(lambda: engine.containers.create(ContainerSpec("img", name="n"))) is kind


def test_verbs_go_to_the_call_that_both_engines_share(either: Both) -> None:
    made, engine = either
    made.on(r"POST .*", reply(b"", 204))
    containers = engine.containers

    containers.start("a b")
    containers.stop("c", 3)
    containers.kill("c", "TERM")
    containers.pause("c")
    containers.unpause("c")
    containers.rename("c", "d")
    containers.resize("c", 24, 80)

    version = engine.facts.api_version
    assert [asked.target for asked in made.asked if asked.path != "/_ping"] == [
        f"/v{version}/containers/a%20b/start",
        f"/v{version}/containers/c/stop?t=3",
        f"/v{version}/containers/c/kill?signal=TERM",
        f"/v{version}/containers/c/pause",
        f"/v{version}/containers/c/unpause",
        f"/v{version}/containers/c/rename?name=d",
        f"/v{version}/containers/c/resize?h=24&w=80",
    ]


def test_starting_what_runs_already_is_no_error(either: Both) -> None:
    made, engine = either
    made.on(r"POST .*/start", reply(b"", 304))

    engine.containers.start("c")


def test_a_verb_that_is_refused_says_why(either: Both) -> None:
    made, engine = either
    containers = engine.containers
    made.on(r"POST .*", reply(NO_CONTAINER, 404))
    assert kind_of(lambda: containers.start("c")) is Kind.CONTAINER_NOT_FOUND
    made.on(r"POST .*", reply({"message": "no"}, 500))
    assert kind_of(lambda: containers.start("c")) is Kind.START_FAILED
    assert kind_of(lambda: containers.pause("c")) is Kind.ENGINE_FAILED
    made.on(r"POST .*", reply({"message": "no"}, 409))
    assert kind_of(lambda: containers.kill("c")) is Kind.CONTAINER_NOT_RUNNING
    assert kind_of(lambda: containers.rename("c", "d")) is Kind.NAME_IN_USE


def test_a_name_cannot_lead_to_another_call(podman: Both) -> None:
    made, engine = podman
    made.on(r"POST .*", reply(b"", 204))

    engine.containers.start("../../images/prune?x=")

    assert made.last.target == "/v1.41/containers/..%2F..%2Fimages%2Fprune%3Fx%3D/start"


def test_a_container_is_removed_at_once(either: Both) -> None:
    made, engine = either
    made.on(r"DELETE .*/c", reply(b"", 204))

    assert engine.containers.remove("c")

    wanted = "/v4.0.0/libpod/containers/c?force=true&v=true&timeout=0"
    if not engine.facts.is_podman:
        wanted = "/v1.44/containers/c?force=true&v=true"
    assert made.last.target == wanted


def test_removing_what_is_not_there_is_told_and_no_error(either: Both) -> None:
    made, engine = either
    made.on(r"DELETE .*/c", reply(NO_CONTAINER, 404))

    assert engine.containers.remove("c") is False
    refused = kind_of(lambda: engine.containers.remove("c", missing_ok=False))
    assert refused is Kind.CONTAINER_NOT_FOUND
    made.on(r"DELETE .*/c", reply({"message": "busy"}, 500))
    assert kind_of(lambda: engine.containers.remove("c")) is Kind.ENGINE_FAILED


@pytest.mark.parametrize("last", [reply(b"", 204), reply(NO_CONTAINER, 404)])
@pytest.mark.parametrize(
    "status, refusal",
    [
        (500, "could not be stopped: timed out waiting for file /exits/c"),
        (500, "removing container c root filesystem: remove /merged: device or resource busy"),
        (409, "removal of container c is already in progress"),
    ],
)
def test_an_engine_that_cannot_remove_it_just_yet_is_asked_again(
    either: Both, status: int, refusal: str, last: bytes
) -> None:
    made, engine = either
    late = reply({"message": refusal}, status)
    answers = iter([late, late, last])
    made.on(r"DELETE .*/c", lambda *_: next(answers))

    assert engine.containers.remove("c"), "there was one, whoever removed it in the end"


def test_a_podman_that_never_sees_an_end_is_an_error(
    podman: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, engine = podman
    monkeypatch.setattr(containers, "REMOVE_SECONDS", 0.3)
    late = reply({"message": "could not be stopped: timed out waiting for file /exits/c"}, 500)
    made.on(r"DELETE .*/c", late)

    with pytest.raises(ContainerError):
        engine.containers.remove("c")


def test_a_container_is_described(either: Both) -> None:
    made, engine = either
    found = {
        "Id": "c1", "Name": "/n", "Created": "2024", "Config": {
            "Image": "img", "Tty": True, "Labels": {"a": "b"}},
        "State": {"Status": "exited", "ExitCode": 137, "OOMKilled": True, "Error": "x\x1b",
                  "Pid": 5, "StartedAt": "s", "FinishedAt": "f"},
    }  # fmt: skip
    made.on(r"GET .*/containers/n/json", reply(found))

    state = engine.containers.inspect("n")

    assert (state.id, state.name, state.image, state.status) == ("c1", "n", "img", "exited")
    assert (state.exit_code, state.oom_killed, state.pid, state.tty) == (137, True, 5, True)
    assert not state.running and not state.paused and state.error == "x\\x1b"
    assert state.labels == {"a": "b"} and state.details == found
    assert ("libpod" in made.last.path) is engine.facts.is_podman


def test_waiting_gives_the_exit_status(either: Both) -> None:
    made, engine = either
    made.on(r"POST .*/wait", reply({"StatusCode": 7, "Error": None}))

    assert engine.containers.wait("c") == 7


def going_on_to_make(made: StandIn) -> list[dict[str, Any]]:
    """An engine that makes what it is asked for, but whose answer is never heard."""
    there: list[dict[str, Any]] = []

    def create(connection: socket.socket, asked: Asked) -> None:
        body = asked.json()
        there.append({"Id": "late", "Labels": body.get("labels") or body.get("Labels")})
        connection.shutdown(socket.SHUT_RDWR)

    def remove(*_: object) -> bytes:
        there.clear()
        return reply(b"", 204)

    made.on(r"POST .*/containers/create", create)
    made.on(r"GET .*/containers/json", lambda *_: reply(there))
    made.on(r"DELETE .*/containers/late", remove)
    return there


def test_a_container_whose_making_was_cut_off_is_not_left_behind(either: Both) -> None:
    made, engine = either
    there = going_on_to_make(made)

    assert kind_of(lambda: engine.containers.create(ContainerSpec("i"))) is Kind.CONNECTION_FAILED

    assert made.last.method == "DELETE" and there == []


def test_a_container_whose_making_was_interrupted_is_not_left_behind(
    podman: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, engine = podman
    there = going_on_to_make(made)
    there.append({"Id": "theirs", "Labels": {"podbot.made": "another"}})
    call = engine.client.call

    def interrupted(asked: Call) -> object:
        if asked.method != "POST":
            return call(asked)
        with suppress(ContainerError):
            call(asked)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.client, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.containers.create(ContainerSpec("i"))
    assert made.last.path.endswith("/containers/late")


def test_nothing_is_taken_back_if_nothing_was_made(
    podman: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, engine = podman
    going_on_to_make(made)
    made.on(r"GET .*/containers/json", reply([]))
    monkeypatch.setattr(containers, "TAKE_BACK_SECONDS", 0.05)

    assert kind_of(lambda: engine.containers.create(ContainerSpec("i"))) is Kind.CONNECTION_FAILED
    made.on(r"GET .*/containers/json", reply({"message": "no"}, 500))
    assert kind_of(lambda: engine.containers.create(ContainerSpec("i"))) is Kind.CONNECTION_FAILED
    assert "DELETE" not in {each.method for each in made.asked}


def test_waiting_too_long_is_told_as_such(podman: Both) -> None:
    made, engine = podman
    made.on(r"POST .*/wait", lambda *_: b"")

    assert kind_of(lambda: engine.containers.wait("c", 0.05)) is Kind.TIMEOUT
    made.on(r"POST .*/wait", reply(NO_CONTAINER, 404))
    assert kind_of(lambda: engine.containers.wait("c", 60)) is Kind.CONTAINER_NOT_FOUND


def test_containers_are_listed_by_label(either: Both) -> None:
    made, engine = either
    listed = [
        {"Id": "a", "Names": ["/n"], "Image": "i", "State": "running", "Created": 5,
         "Labels": {"x": "y", "z": ""}},
        {"Id": "b", "Names": None, "State": "exited", "Labels": None},
        {"Id": "c", "Names": None, "State": "exited", "Labels": {"x": "other", "z": ""}},
    ]  # fmt: skip
    made.on(r"GET .*/containers/json", reply(listed))

    (first,) = engine.containers.list({"x": "y", "z": None})  # whatever the engine lists

    assert (first.id, first.name, first.running) == ("a", "n", True)
    assert first.labels == {"x": "y", "z": ""}
    assert "%5B%22x%3Dy%22%2C%20%22z%22%5D" in made.last.target
    _, second, _ = engine.containers.list(all=False)
    assert (second.name, second.running) == ("", False)
    assert made.last.target.endswith("?all=false")


# Images


def test_an_image_is_here_or_not(either: Both) -> None:
    made, engine = either
    made.on(r"GET .*/images/here/json", reply({}))

    assert engine.images.exists("here") and not engine.images.exists("not/here")
    made.on(r"GET .*/images/x/json", reply({"message": "no"}, 500))
    assert kind_of(lambda: engine.images.exists("x")) is Kind.ENGINE_FAILED
    assert kind_of(lambda: engine.images.inspect("not/here")) is Kind.IMAGE_NOT_FOUND


def test_no_image_is_asked_for_without_a_name(podman: Both) -> None:
    made, engine = podman

    for act in (engine.images.exists, engine.images.inspect, engine.images.remove):
        assert kind_of(lambda act=act: act(" ")) is Kind.MISSING_REQUIRED  # type: ignore[misc]
    assert made.paths() == []


def test_images_are_described(either: Both) -> None:
    made, engine = either
    listed = {"Id": "i", "RepoTags": ["a:1", "<none>:<none>"], "Labels": {"l": "v"}, "Size": 5,
              "Created": 9}  # fmt: skip
    made.on(r"GET .*/images/json", reply([listed]))
    made.on(
        r"GET .*/images/a/json",
        reply({"Id": "i", "Created": "2024-01-01", "Config": {"Labels": {"l": "v"}}}),
    )

    (info,) = engine.images.list({"l": None})
    inspected = engine.images.inspect("a")

    assert (info.id, info.names, info.labels, info.size, info.created) == (
        "i", ("a:1",), {"l": "v"}, 5, 9,
    )  # fmt: skip
    assert (inspected.labels, inspected.created) == ({"l": "v"}, 0)
    engine.images.list()
    assert made.last.target.endswith("/images/json")


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("a", ("a", "latest")),
        ("a:b", ("a", "b")),
        ("host:5000/a", ("host:5000/a", "latest")),
        ("host:5000/a:b", ("host:5000/a", "b")),
        ("a@sha256:c", ("a", "sha256:c")),
    ],
)
def test_a_name_is_split_at_its_tag_or_digest(image: str, parts: tuple[str, str]) -> None:
    assert split_name(image) == parts


def lines(*steps: object) -> bytes:
    return chunked([json.dumps(step).encode() + b"\n" for step in steps])


def test_a_pull_tells_how_far_it_is(either: Both) -> None:
    made, engine = either
    steps = (
        {"status": "Downloading", "id": "ab12", "progressDetail": {"current": 5, "total": 10}},
        {"status": "Done\x1b[1m", "progressDetail": {}},
    )
    made.on(r"POST .*/images/create", lines(*steps))

    first, second = engine.images.pull("host:5000/a:b")

    assert (first.text, first.layer, first.current, first.total) == ("Downloading", "ab12", 5, 10)
    assert second.text == "Done\\x1b[1m"
    assert made.last.target.endswith("?fromImage=host%3A5000%2Fa&tag=b")


def test_a_pull_that_fails_offers_to_build(either: Both) -> None:
    made, engine = either
    made.on(r"POST .*/images/create", lines({"status": "Trying"}, {"error": "no such host\x1b"}))

    with pytest.raises(ContainerError) as caught:
        list(engine.images.pull("a"))

    assert caught.value.kind is Kind.PULL_FAILED
    assert caught.value.message == "cannot pull image a: no such host\\x1b"
    assert "podbot image build" in str(caught.value.remedy)


def test_an_image_is_pulled_only_if_it_is_absent(podman: Both) -> None:
    made, engine = podman
    made.on(r"GET .*/images/here/json", reply({}))
    made.on(r"POST .*/images/create", lines({"status": "Pulled"}))

    assert list(engine.images.ensure("here")) == []
    assert [step.text for step in engine.images.ensure("absent")] == ["Pulled"]


def test_a_root_folder_is_imported(either: Both) -> None:
    made, engine = either
    made_id = "sha256:" + "a" * 64
    made.on(r"POST .*/images/import", reply({"Id": made_id}))
    made.on(r"POST .*/images/create", lines({"status": made_id}))

    found = engine.images.import_tar(iter([b"tar", b"red"]), "localhost/x:1", ['CMD ["sh"]'])

    assert found == made_id
    assert made.last.body == b"tarred" and made.last.headers["content-type"] == "application/x-tar"
    assert "changes=CMD%20%5B%22sh%22%5D" in made.last.target
    assert ("reference=localhost%2Fx%3A1" in made.last.target) is engine.facts.is_podman


def test_an_import_that_tells_no_id_is_looked_up(docker: Both) -> None:
    made, engine = docker
    made.on(r"POST .*/images/create", lines({"status": "ok"}))
    made.on(r"GET .*/images/x/json", reply({"Id": "sha256:1"}))

    assert engine.images.import_tar(b"tar", "x") == "sha256:1"


def test_a_build_tells_what_happens_and_what_it_made(either: Both) -> None:
    made, engine = either
    made.on(r"POST .*/build", lines({"stream": "STEP 1\n"}, {"aux": {"ID": "sha256:1"}}))
    order = BuildOrder(
        ("a:1", "b"), arguments={"X": "y"}, labels={"l": "v"}, network="host", cache=False,
        target="small",
    )  # fmt: skip

    steps = list(engine.images.build(b"context", order))

    assert steps[0].text == "STEP 1" and steps[-1].image == "sha256:1"
    for words in ("t=a%3A1&t=b", "buildargs=%7B%22X%22", "labels=%7B", "networkmode=host",
                  "nocache=true", "target=small", "dockerfile=Containerfile"):  # fmt: skip
        assert words in made.last.target


def test_a_build_that_fails_is_an_error(podman: Both) -> None:
    made, engine = podman
    made.on(r"POST .*/build", lines({"stream": "STEP 1"}, {"error": "COPY failed\n"}))

    with pytest.raises(ContainerError, match="COPY failed") as caught:
        list(engine.images.build(b"", BuildOrder(("a",))))
    assert caught.value.kind is Kind.BUILD_FAILED
    with pytest.raises(ConfigError):
        engine.images.build(b"", BuildOrder(()))


def test_a_line_of_progress_that_is_no_json_is_an_error(podman: Both) -> None:
    made, engine = podman
    made.on(r"POST .*/images/create", chunked([b"pulling...\n"]))

    assert kind_of(lambda: list(engine.images.pull("a"))) is Kind.ENGINE_PROTOCOL


def test_images_are_named_and_removed(either: Both) -> None:
    made, engine = either
    made.on(r"POST .*/images/a/tag", reply(b"", 201))
    made.on(r"DELETE .*/images/b", reply([]))

    engine.images.tag("a", "b:2")
    assert made.last.target.endswith("/images/a/tag?repo=b&tag=2")
    assert engine.images.remove("b", force=True)
    assert made.last.target.endswith("/images/b?force=true")
    assert engine.images.remove("gone") is False
    assert kind_of(lambda: engine.images.remove("gone", missing_ok=False)) is Kind.IMAGE_NOT_FOUND
    made.on(r"DELETE .*/images/b", reply({"message": "in use"}, 409))
    assert kind_of(lambda: engine.images.remove("b")) is Kind.IN_USE


# Execs


def exec_server(
    made: StandIn, said: Iterable[bytes], states: Iterable[dict[str, object]]
) -> list[bytes]:
    """Execs that say this on their stream once their input ended, and are then as told."""
    heard: list[bytes] = []
    remaining = list(states)

    def start(connection: socket.socket, asked: Asked) -> bytes | None:
        if asked.json()["Detach"]:
            return reply(b"")
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n")
        if made.asked[-2].json()["AttachStdin"]:
            while data := connection.recv(65536):
                heard.append(data)
        for part in said:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        return None

    def inspect(*_: object) -> bytes:
        return reply(remaining.pop(0) if len(remaining) > 1 else remaining[0])

    made.on(r"POST .*/containers/c/exec", reply({"Id": "e1"}, 201))
    made.on(r"POST .*/exec/e1/start", start)
    made.on(r"GET .*/exec/e1/json", inspect)
    return heard


ENDED = {"Running": False, "ExitCode": 3, "Pid": 5}
RUNNING = {"Running": True, "ExitCode": None, "Pid": 5}


def test_a_command_is_run_and_what_it_prints_is_kept(either: Both) -> None:
    made, engine = either
    framed = frame(1, b"out") + frame(2, b"err") + frame(1, b"") + frame(0, b"put")
    exec_server(made, [framed[:5], framed[5:13], framed[13:]], [RUNNING, ENDED])

    done = engine.execs.run("c", ExecSpec(("cmd",), {"A": "b"}, workdir="/w", user="1:1"))

    assert (done.exit_code, done.stdout, done.stderr, done.truncated) == (
        3, b"output", b"err", False,
    )  # fmt: skip
    created = next(asked for asked in made.asked if asked.path.endswith("/c/exec")).json()
    assert created["Cmd"] == ["cmd"] and created["Env"] == ["A=b"] and created["User"] == "1:1"
    assert created["WorkingDir"] == "/w" and created["Tty"] is False


def test_input_is_sent_and_ends(podman: Both) -> None:
    made, engine = podman
    heard = exec_server(made, [], [ENDED])

    engine.execs.run("c", ExecSpec(("cat",)), stdin=b"x" * 300_000)

    assert b"".join(heard) == b"x" * 300_000


def test_a_command_that_takes_no_input_is_no_reason_to_fail(podman: Both) -> None:
    made, engine = podman
    exec_server(made, [], [ENDED])

    def start(connection: socket.socket, _: Asked) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n" + frame(1, b"bye"))
        connection.close()

    made.on(r"POST .*/exec/e1/start", start)

    try:
        done = engine.execs.run("c", ExecSpec(("true",)), stdin=b"x" * 5_000_000)
    except ContainerError as error:  # a reset may take unread output with it
        assert error.kind is Kind.CONNECTION_FAILED
    else:
        assert done.exit_code == 3


def test_output_beyond_the_limit_is_cut(podman: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    made, engine = podman
    monkeypatch.setattr("podbot.engine.execs.OUTPUT_LIMIT", 10)
    exec_server(made, [frame(1, b"x" * 8), frame(1, b"y" * 8)], [ENDED])

    done = engine.execs.run("c", ExecSpec(("cmd",)))

    assert (done.stdout, done.truncated) == (b"x" * 8 + b"yy", True)


@pytest.mark.parametrize(
    "said", [b"\x05\0\0\0\0\0\0\1x", b"\1\0\1\0\0\0\0\1x", b"\1\0\0", b"\1\0\0\0\0\0\0\5x"]
)
def test_a_stream_that_is_not_framed_as_it_should_be_is_an_error(podman: Both, said: bytes) -> None:
    made, engine = podman
    exec_server(made, [said], [ENDED])

    assert kind_of(lambda: engine.execs.run("c", ExecSpec(("cmd",)))) is Kind.ENGINE_PROTOCOL


def test_a_command_that_does_not_end_in_time_is_let_go_of(podman: Both) -> None:
    made, engine = podman
    held = threading.Event()

    def start(connection: socket.socket, _: Asked) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
        held.wait(60)

    exec_server(made, [], [ENDED])
    made.on(r"POST .*/exec/e1/start", start)

    spec = ExecSpec(("sleep",))
    assert kind_of(lambda: engine.execs.run("c", spec, seconds=0.05)) is Kind.TIMEOUT
    held.set()


def test_a_detached_command_has_no_streams_and_is_waited_for(either: Both) -> None:
    made, engine = either
    exec_server(made, [frame(1, b"unseen")], [RUNNING, RUNNING, ENDED])

    assert engine.execs.run_detached("c", ExecSpec(("cmd",), tty=True, stdin=True)) == 3

    created = next(asked for asked in made.asked if asked.path.endswith("/c/exec")).json()
    assert created["Tty"] is False and created["AttachStdin"] is False
    assert created["AttachStdout"] is engine.facts.is_podman  # see there why


def test_waiting_for_a_command_has_an_end(docker: Both) -> None:
    made, engine = docker
    exec_server(made, [], [RUNNING])

    assert kind_of(lambda: engine.execs.wait("e1", 0.02)) is Kind.TIMEOUT


def test_a_terminal_is_not_captured(podman: Both) -> None:
    _, engine = podman

    assert kind_of(lambda: engine.execs.run("c", ExecSpec(("sh",), tty=True))) is Kind.INVALID


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply(NO_CONTAINER, 404), Kind.CONTAINER_NOT_FOUND),
        (reply({"message": "paused"}, 409), Kind.CONTAINER_NOT_RUNNING),
        (reply({"cause": "container state improper"}, 500), Kind.CONTAINER_NOT_RUNNING),
        (reply({"message": "x"}, 500), Kind.EXEC_FAILED),
        (reply({}, 201), Kind.ENGINE_PROTOCOL),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_made_is_an_error_of_its_kind(
    podman: Both, answer: Answer, kind: Kind
) -> None:
    made, engine = podman
    made.on(r"POST .*/containers/c/exec", answer)

    assert kind_of(lambda: engine.execs.run("c", ExecSpec(("cmd",)))) is kind


def test_a_command_needs_words() -> None:
    assert kind_of(lambda: ExecSpec(())) is Kind.MISSING_REQUIRED
    assert kind_of(lambda: ExecSpec(("a\0",))) is Kind.INVALID
    assert kind_of(lambda: ExecSpec(("a",), {"": "x"})) is Kind.INVALID


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, 0), (1, 1), (137, 137), (255, 255), (-1, 1), (-9, 1), (256, 255), (3221225477, 255)],
)
def test_an_exit_status_is_one_that_a_shell_can_have(code: int, status: int) -> None:
    assert exit_status(code) == status


def test_a_command_that_ended_without_a_status_failed(podman: Both) -> None:
    made, engine = podman
    exec_server(made, [], [{"Running": False, "ExitCode": None}])

    assert kind_of(lambda: engine.execs.run("c", ExecSpec(("cmd",)))) is Kind.EXEC_FAILED


# Archives


def tar() -> bytes:
    return b"".join(pack([Entry("a", data=b"x" * 700), Entry("b", "folder", 0o755)]))


def in_small_parts() -> Iterable[bytes]:
    whole = tar()
    return (whole[at : at + 100] for at in range(0, len(whole), 100))


@pytest.mark.parametrize("given", [tar, lambda: io.BytesIO(tar()), in_small_parts])
def test_an_archive_is_uploaded_as_it_is(either: Both, given: Callable[[], Any]) -> None:
    made, engine = either
    made.on(r"PUT .*/containers/c/archive", reply(b""))

    engine.containers.put_archive("c", "/root", given())

    assert made.last.body == tar()
    assert "path=%2Froot" in made.last.target


@pytest.mark.parametrize("given", [b"", b"garbage", b"x" * 600, tar()[:-100], b"\x1f\x8b" + tar()])
def test_what_is_no_tar_is_not_uploaded(podman: Both, given: bytes) -> None:
    made, engine = podman
    made.on(r"PUT .*/containers/c/archive", reply(b""))

    with pytest.raises(ContainerError, match="not a whole tar") as caught:
        engine.containers.put_archive("c", "/root", given)
    assert (caught.value.kind, caught.value.subject) == (Kind.UPLOAD_FAILED, "c")


def test_every_failed_upload_is_one_kind_with_the_container(either: Both) -> None:
    made, engine = either
    for status, body in ((404, NO_CONTAINER), (500, {"message": "disk full"}), (200, "late: full")):
        made.on(r"PUT .*/containers/c/archive", reply(body, status))
        with pytest.raises(ContainerError) as caught:
            engine.containers.put_archive("c", "/root", tar())
        assert (caught.value.kind, caught.value.subject) == (Kind.UPLOAD_FAILED, "c")
        assert caught.value.remedy


def test_a_file_is_downloaded(either: Both, folder: Path) -> None:
    made, engine = either
    made.on(r"GET .*/containers/c/archive", chunked([b"".join(pack([Entry("a", data=b"hi")]))]))

    done = engine.containers.download("c", "/a", str(folder / "copy"))

    assert (folder / "copy").read_bytes() == b"hi"
    assert (done.files, done.bytes, done.skipped) == (1, 2, ())
    engine.ping()
    assert made.connections == 1  # the archive was read to its end


def test_a_download_of_nothing_is_told_apart_from_one_that_failed(podman: Both) -> None:
    made, engine = podman
    made.on(r"GET .*/containers/c/archive", reply({"message": "no such file"}, 404))
    assert kind_of(lambda: engine.containers.get_archive("c", "/a")) is Kind.NOT_FOUND
    made.on(r"GET .*/containers/c/archive", reply({"message": "broken"}, 500))
    assert kind_of(lambda: engine.containers.get_archive("c", "/a")) is Kind.DOWNLOAD_FAILED


# The engine itself


def test_an_engine_tells_about_itself_once(either: Both) -> None:
    made, engine = either
    parts = [
        {"Name": "Podman Engine", "Version": "4.3.1"},
        {"Name": "OCI Runtime (runc)", "Version": "runc version 1.1.5+ds1\ncommit: x"},
        {"Name": "containerd", "Version": "v1.6.20"},
    ]
    made.on(r"GET .*/version", reply({"Components": parts}))
    info = {
        "Runtimes": {"runc": {"path": "/usr/bin/env"}, "gone": {"path": "/none"}, "io.x": {}},
        "DefaultRuntime": "runc", "MemoryLimit": True, "Warnings": ["w\x1b"],
        "SecurityOptions": ["name=seccomp"], "CgroupDriver": "systemd",
    }  # fmt: skip
    made.on(r"GET .*/info", reply(info))

    about = engine.about()

    assert [(part.name, part.version) for part in about.components] == [
        ("podman", "4.3.1"), ("runc", "1.1.5"), ("containerd", "1.6.20"),
    ]  # fmt: skip
    assert about.runtimes == ("io.x", "runc") and about.default_runtime == "runc"
    assert about.memory_limit and not about.pids_limit and about.warnings == ("w\\x1b",)
    assert engine.about() is about
    assert "CVE-2024-21626" in {warning.escape.name for warning in engine.warnings()}


def test_an_engine_newer_than_we_know_is_spoken_to_as_we_know_it(docker: Both) -> None:
    made, engine = docker
    made.ping["Api-Version"] = "1.60"

    assert engine.facts.api_version == "1.44"


def test_a_podman_that_is_too_old_is_named(podman: Both) -> None:
    made, engine = podman
    made.ping["Libpod-Api-Version"] = "3.4.4"

    with pytest.raises(ContainerError, match=r"Podman 3\.4\.4 .* is too old") as caught:
        engine.containers.list()
    assert caught.value.kind is Kind.UNSUPPORTED


def test_the_tools_profile_is_the_default_of_a_container() -> None:
    assert ContainerSpec("x").profile is TOOLS


def test_every_public_name_can_be_loaded() -> None:
    import podbot.engine as public

    for name in public.__all__:
        assert getattr(public, name) is not None
    with pytest.raises(AttributeError, match="nonesuch"):
        public.nonesuch  # noqa: B018 - looking is what is tried
