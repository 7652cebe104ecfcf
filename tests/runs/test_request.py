"""One request for whatever is run: what each backend is given of it, and what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from podbot.errors import ConfigError, Kind, PodbotError
from podbot.runs import LaunchRequest
from podbot.runs.opening import open_sandbox
from podbot.sandbox import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, SandboxError


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("local", {"network": "none"}),
        ("local", {"hide": ("/etc/passwd",)}),
        ("local", {"show": ("/etc/passwd",)}),
        ("local", {"name": "mine"}),
        ("local", {"title": "mine"}),
        ("local", {"continue_in": "last"}),
        ("local", {"discard": True}),
        ("memory", {"network": "host"}),
        ("memory", {"environment": {"KEY": "value"}}),
        ("overlay", {"image": "debian"}),
        ("local", {"image": "debian"}),
    ],
)
def test_what_a_backend_cannot_keep_to_is_refused(backend: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        LaunchRequest(("true",), backend=backend, **options)  # type: ignore[arg-type]
    assert caught.value.kind is Kind.UNSUPPORTED
    assert caught.value.field in options
    assert "value" not in str(caught.value)


def test_podman_is_another_word_for_container() -> None:
    assert LaunchRequest(backend="podman") == LaunchRequest(backend="container")
    assert LaunchRequest(backend="podman", image="x").backend == "container"


def test_a_network_may_be_a_word_and_a_wrong_one_is_refused() -> None:
    assert LaunchRequest(network="host").policy().network.reaches_out
    assert not LaunchRequest().policy().network.reaches_out
    with pytest.raises(PodbotError, match="is not known"):
        LaunchRequest(network="moon")  # type: ignore[arg-type]  # that is the point


def test_what_is_asked_for_comes_besides_the_usual() -> None:
    policy = LaunchRequest(
        hide=("/a",), show=("/b",), environment={"X": "1"}, pass_environment=("Y",)
    ).policy()
    assert policy.hidden == (*DEFAULT_HIDDEN, "/a")
    assert policy.readable == ("/b",)
    assert policy.environment == {"X": "1"}
    assert policy.pass_environment == (*DEFAULT_ENVIRONMENT, "Y")


def test_it_is_a_value(target: Path) -> None:
    request = LaunchRequest(("true",), targets=(target,), environment={"A": "b"}, backend="podman")
    assert copy.copy(request) == request
    with pytest.raises(AttributeError):
        request.backend = "local"  # type: ignore[misc]  # that is the point


def test_only_local_isolates_nothing() -> None:
    assert not LaunchRequest(backend="local").isolates
    assert all(LaunchRequest(backend=each).isolates for each in (None, "overlay", "container"))


@pytest.mark.parametrize("backend", ["container", "local"])
def test_several_targets_are_for_an_overlay(backend: str, target: Path) -> None:
    request = LaunchRequest(("true",), backend=backend, targets=(target, target))
    with pytest.raises(ConfigError, match="works on one folder, and 2 were named"):
        open_sandbox(request, None)


def test_an_unknown_backend_is_named_with_the_nearest(target: Path) -> None:
    with pytest.raises(SandboxError, match="did you mean 'container'") as caught:
        open_sandbox(LaunchRequest(("true",), backend="contaner", targets=(target,)), None)
    assert caught.value.kind is Kind.UNKNOWN_BACKEND


def test_an_image_without_a_container_is_refused_late_but_before_it_runs(target: Path) -> None:
    with pytest.raises(ConfigError, match="does not support image"):
        open_sandbox(LaunchRequest(("true",), image="debian", targets=(target,)), None)
