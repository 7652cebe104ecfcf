"""Routes as people write them."""

from __future__ import annotations

import os

import pytest

from podbot.egress import EgressError, FromCommand, FromFile, FromVariable, Source, route_of


@pytest.mark.parametrize(
    ("word", "source"),
    [
        ("anthropic", FromVariable("ANTHROPIC_API_KEY")),
        ("openai", FromVariable("OPENAI_API_KEY")),
        ("gemini", FromVariable("GEMINI_API_KEY")),
        ("anthropic=env:MY_KEY", FromVariable("MY_KEY")),
        ("openai=file:/run/secrets/a=b", FromFile("/run/secrets/a=b")),
        ("openai=file:~/key", FromFile(os.path.expanduser("~/key"))),
        ("openai=file:key", FromFile(os.path.abspath("key"))),
        ("gemini=command:pass show 'my key'", FromCommand(("pass", "show", "my key"))),
    ],
)
def test_a_word_names_a_service_and_where_its_key_lies(word: str, source: Source) -> None:
    route = route_of(word)
    assert (route.name, route.source) == (word.partition("=")[0], source)


def test_a_service_that_speaks_the_same_is_named_by_its_address() -> None:
    route = route_of("openai@https://models.example/api=env:KEY")
    assert (route.base, route.name) == ("https://models.example/api", "openai")
    assert route_of("openai@http://host.podbot.internal:11434").place[1:3] == (
        "host.podbot.internal", 11434,
    )  # fmt: skip


@pytest.mark.parametrize(
    "word",
    [
        "", "anthropic=", "anthropic=sk-secret", "anthropic=sk-secret:x", "sk-secret",
        "other=env:A",
        "anthropic=env:", "anthropic=env:sk-secret", "anthropic=env:A B", "anthropic=file:",
        "anthropic=command:", "anthropic=command: ", "anthropic=command:'sk-secret",
        "anthropic@ftp://a=env:A", "anthropic@http://sk-secret.example=env:A",
    ],
)  # fmt: skip
def test_what_is_no_route_is_refused_and_never_repeated(word: str) -> None:
    with pytest.raises(EgressError) as caught:
        route_of(word)
    assert "sk-secret" not in f"{caught.value}{caught.value.__cause__}"
