"""Where an engine is looked for, and in which order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from podbot.engine.finding import candidates
from podbot.engine.finding.candidates import VARIABLES, named, searched
from podbot.errors import ConfigError, Kind


def fake_podman(folder: Path, said: str, status: int = 0) -> dict[str, str]:
    """An environment whose podman program prints this, whatever it is asked."""
    program = folder / "podman"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}


CONNECTIONS = [
    {"Name": "first", "URI": "unix:///first.sock", "Identity": "", "Default": False},
    {"Name": "box", "URI": "ssh://me@box/run/p.sock", "Identity": "/key", "Default": True},
]


def test_the_strongest_variable_wins() -> None:
    environment: dict[str, str] = {}
    for variable, _ in reversed(VARIABLES):
        if variable == candidates.CONNECTION:
            continue
        environment[variable] = f"unix:///{variable}"

        found = named(environment)

        assert found is not None
        assert (found.found_by, found.endpoint.path) == (variable, f"/{variable}")


def test_the_order_of_the_variables_is_the_agreed_one() -> None:
    assert [variable for variable, _ in VARIABLES] == [
        "PODBOT_ENGINE_SOCKET",
        "PODMAN_BASE_URL",
        "PODMAN_CONNECTION",
        "PODMAN_URL",
        "CONTAINER_HOST",
        "PODMAN_HOST",
        "DOCKER_HOST",
    ]


def test_an_empty_variable_does_not_count() -> None:
    assert named({"PODBOT_ENGINE_SOCKET": " ", "DOCKER_HOST": ""}) is None


def test_a_key_file_comes_with_its_variable() -> None:
    place = "ssh://box/run/p.sock"

    by_base = named({"PODMAN_BASE_URL": place, "PODMAN_IDENTITY": "/a"})
    by_host = named({"CONTAINER_HOST": place, "CONTAINER_SSHKEY": "/b"})
    by_url = named({"PODMAN_URL": place, "PODMAN_IDENTITY": "/a"})

    assert by_base is not None and by_base.endpoint.identity == "/a"
    assert by_host is not None and by_host.endpoint.identity == "/b"
    assert by_url is not None and by_url.endpoint.identity is None


def test_a_variable_that_makes_no_sense_is_an_error_and_not_passed_over() -> None:
    with pytest.raises(ConfigError):
        named({"PODMAN_URL": "gopher://box", "DOCKER_HOST": "unix:///run/docker.sock"})


def test_a_connection_is_found_by_its_name(folder: Path) -> None:
    environment = fake_podman(folder, json.dumps(CONNECTIONS))

    found = named(environment | {"PODMAN_CONNECTION": "box"})

    assert found is not None
    assert found.endpoint.host == "box" and found.endpoint.identity == "/key"
    assert found.found_by == "PODMAN_CONNECTION=box"


def test_a_connection_that_podman_does_not_have_is_named_with_those_it_has(folder: Path) -> None:
    environment = fake_podman(folder, json.dumps(CONNECTIONS))

    with pytest.raises(ConfigError, match=r"nope.*first, box") as caught:
        named(environment | {"PODMAN_CONNECTION": "nope"})
    assert caught.value.kind is Kind.INVALID

    with pytest.raises(ConfigError, match="it has: none"):
        named({"PODMAN_CONNECTION": "nope", "PATH": ""})


def test_a_search_begins_with_podmans_default_connection(folder: Path) -> None:
    environment = fake_podman(folder, json.dumps(CONNECTIONS))
    (folder / ".config/containers").mkdir(parents=True)
    (folder / ".config/containers/podman-connections.json").write_text("{}")

    found = list(searched(environment))

    assert found[0].found_by == "podman connection box"
    assert [each.endpoint.path for each in found[1:3]] == [
        f"{folder}/podman/podman.sock",
        f"{folder}/docker.sock",
    ]
    assert "/run/podman/podman.sock" in [each.endpoint.path for each in found]
    assert found[-1].endpoint.path.endswith("/docker.sock")


def test_without_a_default_the_first_connection_counts(folder: Path) -> None:
    listed = [entry | {"Default": False} for entry in CONNECTIONS]
    environment = fake_podman(folder, json.dumps(listed))
    (folder / "c.conf").write_text("[engine.service_destinations.first]\nuri='unix:///x'\n")

    found = list(searched(environment | {"CONTAINERS_CONF": str(folder / "c.conf")}))

    assert found[0].found_by == "podman connection first"


def test_older_podmans_mark_the_default_with_a_star(folder: Path) -> None:
    environment = fake_podman(folder, json.dumps([{"Name": "a*", "URI": "unix:///a"}]))

    (found,) = candidates.connections(environment)

    assert (found.name, found.default) == ("a", True)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("not json", 0),
        ("{}", 0),
        ('[1, {"Name": 1}, {"Name": "x"}, {"Name": "y", "URI": "gopher://"}]', 0),
        (json.dumps(CONNECTIONS), 1),
    ],
)
def test_a_list_that_makes_no_sense_holds_no_connections(
    folder: Path, said: str, status: int
) -> None:
    assert candidates.connections(fake_podman(folder, said, status)) == []


def test_podman_is_asked_for_connections_only_if_a_file_mentions_them(folder: Path) -> None:
    environment = {"HOME": str(folder), "PATH": ""}
    system = candidates.connections_mentioned(environment)  # what this machine's own files say
    settings = folder / ".config/containers/containers.conf.d"
    settings.mkdir(parents=True)
    (settings / "a.conf").write_text("# [engine.service_destinations]\n[engine]\n")
    assert candidates.connections_mentioned(environment) is system

    (settings / "b.conf").write_text("[engine]\n  [engine.service_destinations.box]\n")
    assert candidates.connections_mentioned(environment)


def test_the_users_sockets_come_before_the_systems(folder: Path) -> None:
    found = [path for path, _ in candidates.sockets({"HOME": "/home/dev"})]

    assert found[0] == f"/run/user/{os.geteuid()}/podman/podman.sock"
    assert found.index("/home/dev/.docker/run/docker.sock") < found.index("/run/docker.sock")
    assert not [path for path, _ in candidates.sockets({}) if ".docker" in path]


def test_podman_is_a_program_that_can_be_run(folder: Path) -> None:
    (folder / "podman").write_text("")
    assert candidates.find_podman({"PATH": f"relative:{folder}"}) is None

    (folder / "podman").chmod(0o755)
    assert candidates.find_podman({"PATH": f"relative:{folder}"}) == str(folder / "podman")
