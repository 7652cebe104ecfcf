"""`Network`: a value that is its word, known in one module."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from podbot import Network, Policy
from podbot.api import RunRequest
from podbot.errors import Kind, SandboxError
from podbot.mcp import ServeRequest

BOTH = (Network.none, Network.host)


@pytest.mark.parametrize("network", BOTH)
def test_a_network_is_its_plain_word(network: Network) -> None:
    word = str(network)
    assert type(word) is str
    assert network == word and hash(network) == hash(word)
    assert json.loads(json.dumps({"network": network})) == {"network": word}
    assert f"{network}" == word


@pytest.mark.parametrize("network", BOTH)
def test_a_network_stays_one_when_copied(network: Network) -> None:
    for other in (
        pickle.loads(pickle.dumps(network)),  # noqa: S301 - just made
        copy.copy(network),
        copy.deepcopy(network),
    ):
        assert other is network


def test_whatever_takes_a_network_takes_the_word_and_keeps_the_value() -> None:
    for given in ("host", Network.host):
        for made in (
            Policy(network=given),
            RunRequest(("true",), network=given),
            RunRequest(("true",), network=given).policy(),
            ServeRequest(RunRequest(network=given)).launch.policy(),
        ):
            assert type(made.network) is Network and made.network == "host"
    assert Policy().network is Network.none


def test_what_a_network_is_asked() -> None:
    assert Network.none.separate and not Network.none.reaches_out
    assert Network.host.reaches_out and not Network.host.separate
    assert Network.none.described == "no network"
    assert "this machine" in Network.host.described
    assert repr(Network.none) == "Network.none"


@pytest.mark.parametrize("word", ["", "None", "bridge", None, 0, ["none"]])
def test_any_other_word_is_refused(word: object) -> None:
    makers = [Network, lambda found: Policy(network=found)]
    if word is not None:  # which leaves it to the backend
        makers.append(lambda found: RunRequest((), network=found))
    for make in makers:
        with pytest.raises(SandboxError, match="is not known") as caught:
            make(word)
        assert caught.value.kind is Kind.INVALID
        assert '"none"' in caught.value.remedy
