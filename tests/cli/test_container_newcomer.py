"""What somebody meets who uses the commands for containers the first time: beginnings of names,
where a command starts, what can be kept, and what errors and help texts say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from service_of_containers import ServiceOfContainers, container, running

from podbot import api
from podbot.cli import main
from podbot.engine import labels
from podbot.engine.engine import Engine
from podbot.errors import ContainerError, Kind
from podbot.launch import containers
from podbot.sandbox.container import _plan, settings


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceOfContainers]:
    with running() as made:
        monkeypatch.setenv("PODBOT_ENGINE_SOCKET", made.url)
        yield made


def sandbox(name: str, **more: object) -> dict[str, object]:
    return container(name, labels.owner_label(), **more)


def agent(name: str, **more: object) -> dict[str, object]:
    marks = {labels.OWNER: labels.owner_label(), labels.KIND: "agent"}
    return container(name, labels.owner_label(), Labels=marks, **more)


# Keeping


def test_the_kind_of_a_sandbox_is_the_one_that_the_backend_gives() -> None:
    assert containers.SANDBOX == _plan.KIND


def test_a_sandboxs_container_is_not_kept_and_not_touched(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [sandbox("box")]

    assert main(["stop", "--keep", "box"]) == 2

    told = capsys.readouterr()
    assert told.out == "" and "container box cannot be kept" in told.err
    assert "leave out --keep" in told.err and "podbot changes" in told.err
    assert not {"POST stop", "POST kill"} & set(service.paths())
    with pytest.raises(ContainerError) as caught:
        api.stop("box", keep=True)
    assert caught.value.kind is Kind.UNSUPPORTED


def test_stop_all_keeps_the_others_and_tells_of_the_sandboxes(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [sandbox("box"), agent("helper")]

    assert main(["stop", "--keep", "--all"]) == 2

    told = capsys.readouterr()
    assert told.out == "stopped  helper\n" and "box" in told.err
    assert len(service.containers) == 2


# Beginnings of names


def test_a_beginning_of_a_name_is_enough_if_only_one_has_it(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    service.containers = [sandbox("wink-4f2a"), sandbox("other-1")]

    assert main(["stop", "wi"]) == 2
    assert "no container wi" in capsys.readouterr().err
    assert main(["stop", "win"]) == 0
    assert capsys.readouterr().out == "removed  wink-4f2a\n"


def test_a_whole_name_comes_before_an_ids_beginning_and_that_before_a_names(
    service: ServiceOfContainers,
) -> None:
    service.containers = [
        sandbox("abcd", Id="1" * 64),
        sandbox("abc-one", Id="2" * 64),
        sandbox("third", Id="abcde" + "3" * 59),
    ]

    with the_engine() as engine:
        assert containers.find(engine, "abcd").name == "abcd"
        assert containers.find(engine, "abc").name == "third"
        assert containers.find(engine, "abc-").name == "abc-one"


@pytest.mark.parametrize("count, more", [(3, False), (containers.MOST_NAMED + 2, True)])
def test_a_beginning_of_several_names_is_refused_with_the_names(
    service: ServiceOfContainers, count: int, more: bool
) -> None:
    service.containers = [sandbox(f"wink-{number}") for number in range(count)]

    with pytest.raises(ContainerError) as caught:
        api.stop("wink-")

    assert caught.value.kind is Kind.AMBIGUOUS_ID
    assert f"wink- is the beginning of {count} names" in caught.value.message
    remedy = str(caught.value.remedy)
    assert "wink-0, wink-1, wink-2" in remedy and ("and 2 more" in remedy) is more
    assert len(service.containers) == count


def the_engine() -> AbstractContextManager[Engine]:
    return containers.connected(os.environ["PODBOT_ENGINE_SOCKET"])


# Where a command starts


@pytest.mark.parametrize(
    "made, words, folder",
    [
        (sandbox, (), settings.WORKDIR),
        (sandbox, ("--workdir=/usr",), "/usr"),
        (agent, (), None),
        (agent, ("--workdir=/usr",), "/usr"),
    ],
)
def test_a_command_starts_in_the_workspace_of_a_sandbox(
    service: ServiceOfContainers,
    made: Callable[[str], dict[str, object]],
    words: tuple[str, ...],
    folder: str | None,
) -> None:
    service.containers = [made("one")]

    assert main(["exec", "one", "--detach", *words, "--", "true"]) == 0

    asked = next(each for each in service.asked if each.path.endswith("/exec")).json()
    assert (asked.get("WorkingDir") or None) == folder


# Images


def test_a_build_that_lacks_a_program_announces_nothing(
    service: ServiceOfContainers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert main(["image", "build", "--small"]) == 2

    told = capsys.readouterr().err
    assert "mmdebstrap is not installed" in told and "bootstrapping" not in told


def test_a_missing_image_can_be_made_in_seconds(service: ServiceOfContainers) -> None:
    with the_engine() as engine, pytest.raises(ContainerError) as caught:
        engine.images.inspect("localhost/none:1")

    assert caught.value.kind is Kind.IMAGE_NOT_FOUND
    assert "podbot image build`" in str(caught.value.remedy)
    assert "podbot image build --small --from scratch" in str(caught.value.remedy)


# Words


@pytest.mark.parametrize(
    "word, told",
    [
        ("--nme", "there is no option --nme; did you mean --name?"),
        ("--tmeout=5", "there is no option --tmeout=5; did you mean --timeout?"),
        ("--qqqq", "there is no option --qqqq\n"),
    ],
)
def test_a_misspelt_option_is_told_with_the_one_that_is_like_it(
    word: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="125"):
        main(["run", word, "x"])

    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, told",
    [
        ("stop", "A sandbox's container cannot be kept"),
        ("stop", "the start of either"),
        ("exec", "/workspace in a sandbox"),
        ("gc", "if the tools that used them crashed"),
    ],
)
def test_the_help_tells_it_as_it_is(
    command: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])

    assert told in " ".join(capsys.readouterr().out.split())
