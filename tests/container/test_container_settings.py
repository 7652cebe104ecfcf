"""What may be chosen about a container sandbox, and what is refused before any engine is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from podbot.errors import Kind, LaunchError, SandboxError
from podbot.sandbox import Limits, Policy, open
from podbot.sandbox.container.settings import CONTAINER_LIMITS, Settings
from podbot.sandbox.layers import Layer
from podbot.sandbox.limits import GIB

LAYER = Layer(Path("/nowhere/layer"), ("/nowhere",), 0.0, 1, "copy")


def test_a_container_has_one_processor_and_a_gibibyte_unless_told_otherwise() -> None:
    settings = Settings.of(None, {})
    assert (settings.limits.cpu, settings.limits.memory) == (1.0, GIB)
    assert settings.limits is CONTAINER_LIMITS
    assert Settings.of(None, {"limits": Limits()}).limits.cpu is None


def test_what_is_none_is_not_chosen() -> None:
    settings = Settings.of("/x", {"policy": None, "limits": None, "name": None, "engine": None})
    assert settings.policy == Policy()
    assert settings.target == "/x"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workspace": "mirror"}, "mirror"),
        ({"name": "no/slash"}, "no/slash"),
        ({"name": ""}, "cannot be the name"),
        ({"seccomp": "unconfined"}, "seccomp='unconfined' is not known"),
        ({"idle": 0.0}, "not a time"),
        ({"idle": float("nan")}, "not a time"),
        ({"workspace": "bind"}, "none is named"),
        ({"workspace": "bind", "layer": LAYER}, "none is named"),
        ({"layer": LAYER, "discard": True}, "keeps the target"),
        ({"layer": LAYER, "target": "/x"}, "keeps the target"),
    ],
)
def test_choices_that_make_no_sense_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        open("container", **options)
    assert caught.value.kind is Kind.INVALID
    assert caught.value.remedy


@pytest.mark.parametrize("image", ["", "  "])
def test_an_image_must_be_named(image: str) -> None:
    with pytest.raises(LaunchError) as caught:
        open("container", image=image)
    assert caught.value.kind is Kind.MISSING_REQUIRED


def test_an_option_that_is_none_is_an_error_of_the_caller() -> None:
    with pytest.raises(SandboxError) as raised:
        open("container", colour="blue")
    assert raised.value.kind is Kind.INVALID
    assert "colour" in raised.value.message
