"""Logins that reach a registry with a pull, and the one size that an image has."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_of_containers import ServiceOfContainers, chunked, reply, running
from standin import DOCKER, PODMAN, StandIn, on_port

from podbot import engine
from podbot.cli import main
from podbot.engine.image import _credentials, building
from podbot.engine.image.recipes import Recipe
from podbot.errors import ContainerError

PULLED = chunked([b'{"status": "done"}\n'])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".docker").mkdir()
    return tmp_path


def settings(home: Path, **given: object) -> None:
    (home / ".docker" / "config.json").write_text(json.dumps(given))


def secret(words: str) -> dict[str, str]:
    return {"auth": base64.b64encode(words.encode()).decode()}


def helper(home: Path, name: str, script: str) -> None:
    (home / "bin").mkdir(exist_ok=True)
    program = home / "bin" / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    os.environ["PATH"] = f"{home}/bin:{os.defpath}"  # the fixture gives it back


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])


@pytest.fixture
def docker() -> Iterator[ServiceOfContainers]:
    """A service that says it is Docker."""
    with running() as made:
        made.on(r"GET /_ping", reply(b"OK", headers=DOCKER))
        made.on(r"POST .*/images/create", PULLED)
        yield made


def sent(service: ServiceOfContainers, image: str) -> dict[str, str] | None:
    """What was sent along with a pull."""
    with engine.connect(service.url) as found:
        list(found.images.pull(image))
    asked = next(each for each in reversed(service.asked) if each.path.endswith("/images/create"))
    header = asked.headers.get("x-registry-auth")
    return None if header is None else dict(json.loads(base64.urlsafe_b64decode(header)))


@pytest.mark.parametrize(
    "key, image",
    [
        ("registry.example", "registry.example/team/app:1"),
        ("https://registry.example/v1/", "registry.example/team/app"),
        ("registry.example/team", "registry.example/team/app@sha256:00"),
        ("registry.example:5000", "registry.example:5000/app:1"),
        ("localhost", "localhost/app"),
        ("https://index.docker.io/v1/", "python:3.12"),
        ("docker.io", "team/app"),
        ("docker.io", "docker.io/library/python"),
    ],
)
def test_a_login_goes_with_a_pull_from_its_registry(
    docker: ServiceOfContainers, home: Path, key: str, image: str
) -> None:
    settings(home, auths={"other.example": secret("no:body"), key: secret("me:pass:word")})

    found = sent(docker, image)

    assert found is not None
    assert (found["username"], found["password"]) == ("me", "pass:word")
    assert found["serveraddress"] == _credentials.registry_of(image)
    assert sent(docker, "third.example/app") is None


def test_the_login_that_fits_best_is_taken(docker: ServiceOfContainers, home: Path) -> None:
    settings(home, auths={"r.example": secret("any:1"), "r.example/a/b": secret("b:2")})

    assert (sent(docker, "r.example/a/b:1") or {})["username"] == "b"
    assert (sent(docker, "r.example/a/c:1") or {})["username"] == "any"


def test_a_token_is_sent_as_one(docker: ServiceOfContainers, home: Path) -> None:
    settings(home, auths={"r.example": {**secret("x:"), "identitytoken": "the token"}})

    found = {"identitytoken": "the token", "serveraddress": "r.example"}
    assert sent(docker, "r.example/a") == found


ASKED = 'read name; test "$1" = get && echo "{\\"Username\\":\\"%s\\",\\"Secret\\":\\"$name\\"}"'


def test_a_helper_that_the_settings_name_is_asked(docker: ServiceOfContainers, home: Path) -> None:
    helper(home, "one", ASKED % "me")
    helper(home, "two", ASKED % "<token>")
    settings(home, credHelpers={"r.example": "one"}, credsStore="two")

    assert sent(docker, "r.example/a") == {
        "username": "me", "password": "r.example", "serveraddress": "r.example",
    }  # fmt: skip
    assert sent(docker, "python") == {
        "identitytoken": "https://index.docker.io/v1/", "serveraddress": "docker.io",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name, script",
    [
        ("fails", "echo 'credentials not found'; exit 1"),
        ("odd", "echo nonsense"),
        ("silent", 'echo "{}"'),
        ("hangs", "exec sleep 1000"),
        ("absent", ""),
        ("../../../bin/true", ""),
    ],
)
def test_a_helper_that_does_not_help_logs_nobody_in(
    docker: ServiceOfContainers,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    script: str,
) -> None:
    monkeypatch.setattr(_credentials, "HELPER_SECONDS", 0.5)
    if script:
        helper(home, name, script)
    settings(home, credsStore=name)

    assert sent(docker, "r.example/a") is None


@pytest.mark.parametrize(
    "text",
    ["nonsense", "[]", '{"auths": 5}', '{"auths": {"r.example": {"auth": "?"}}}',
     '{"auths": {"r.example": {"auth": "bm9jb2xvbg=="}}}', '{"auths": {"r.example": {}}}'],
)  # fmt: skip
def test_a_file_that_makes_no_sense_logs_nobody_in(
    docker: ServiceOfContainers, home: Path, text: str
) -> None:
    (home / ".docker" / "config.json").write_text(text)

    assert sent(docker, "r.example/a") is None


def test_a_local_podman_reads_its_own_file(home: Path) -> None:
    settings(home, auths={"r.example": secret("me:word")})
    with running() as podman:
        podman.on(r"POST .*/images/create", PULLED)

        assert sent(podman, "r.example/a") is None


@pytest.fixture
def remote(request: pytest.FixtureRequest) -> Iterator[tuple[StandIn, ServiceOfContainers]]:
    stand_in = on_port()
    made = ServiceOfContainers(stand_in, f"tcp://127.0.0.1:{stand_in.listener.getsockname()[1]}")
    made.on(r"GET /_ping", reply(b"OK", headers=PODMAN))
    made.on(r"GET .*/info", reply({}))
    made.on(r"POST .*/images/create", PULLED)
    yield stand_in, made
    stand_in.close()


@pytest.mark.parametrize("place", ["REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", None])
def test_a_podman_elsewhere_is_told_what_podman_login_kept_here(
    remote: tuple[StandIn, ServiceOfContainers],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str | None,
) -> None:
    settings(home, auths={"r.example": secret("docker:word")})
    if place is not None:
        (home / "containers").mkdir()
        file = home / "containers" / "auth.json"
        file.write_text(json.dumps({"auths": {"r.example": secret("podman:word")}}))
        monkeypatch.setenv(place, str(file if place == "REGISTRY_AUTH_FILE" else home))

    found = sent(remote[1], "r.example/a")

    assert (found or {})["username"] == ("docker" if place is None else "podman")


def test_nothing_secret_goes_over_a_line_that_others_can_read(
    remote: tuple[StandIn, ServiceOfContainers], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(home, auths={"r.example": secret("me:word")})
    with engine.connect(remote[1].url) as found:
        monkeypatch.setattr(type(found.endpoint), "is_loopback", False)

        assert _credentials.headers(found, "r.example/a", os.environ) == {}
        encrypted = {**os.environ, "DOCKER_TLS_VERIFY": "1"}
        assert _credentials.headers(found, "r.example/a", encrypted) != {}


def test_a_pull_that_fails_shows_no_secret(docker: ServiceOfContainers, home: Path) -> None:
    settings(home, auths={"r.example": secret("me:hush")})
    docker.on(r"POST .*/images/create", reply({"message": "unauthorized"}, 500))

    with engine.connect(docker.url) as found, pytest.raises(ContainerError) as caught:
        list(found.images.pull("r.example/a"))

    assert "hush" not in repr(caught.value) and "unauthorized" in str(caught.value)


# Sizes, and help


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceOfContainers]:
    with running() as made:
        monkeypatch.setenv("PODBOT_ENGINE_SOCKET", made.url)
        yield made


def test_an_image_has_one_size_whoever_tells_it(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = {building.VARIANT_LABEL: "tools", building.KEY_LABEL: Recipe("tools").key}
    service.add_image("some/base", {})
    inspected = {
        "Id": "sha256:" + "b" * 64, "RepoTags": ["localhost/x:2"], "Size": 5,
        "Created": "2026-01-01T00:00:00Z", "Config": {"Labels": marks},
    }  # fmt: skip
    service.on(r"GET .*/images/localhost%2Fx%3A2/json", reply(inspected))

    def told(*words: str) -> dict[str, object]:
        assert main(["image", *words, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    made = told("build", "--from=some/base", "--small", "--tag=localhost/x:2")
    images = told("list")["images"]
    assert isinstance(images, list)
    listed = next(each for each in images if each["names"] == ["localhost/x:2"])

    assert (made["size"], made["created"]) == (listed["size"], listed["created"])
    assert made["size"] == 200 << 20

    service.on(r"GET .*/images/json", reply([]))  # it went meanwhile
    assert told("build", "--from=some/base", "--small", "--tag=localhost/x:2")["size"] == 5


def test_the_help_of_each_verb_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["image", "build", "--help"])

    shown = capsys.readouterr().out
    assert "examples:\n  podbot image build --small" in shown and "exit codes:" in shown


def test_an_odd_name_has_an_end() -> None:
    assert list(_credentials._names("a.b@c/d"))[-1] == "a.b@c"
