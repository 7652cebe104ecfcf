"""`Network`: a value that is its word, known in one module."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from podbot import Network, Policy
from podbot.api import RunRequest
from podbot.errors import EgressError, Kind, SandboxError
from podbot.mcp import ServeRequest

BOTH = (Network.none, Network.host)
CHOSEN = Network.allow("pypi.org", "*.example.org:443", deny=("bad.example.org",), presets=("npm",))


@pytest.mark.parametrize("network", [*BOTH, CHOSEN, Network.allow()])
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


@pytest.mark.parametrize("network", [CHOSEN, Network.allow(), Network.allow("GET,HEAD a.b:80/")])
def test_one_that_names_hosts_stays_equal_when_copied_or_made_of_its_word(network: Network) -> None:
    for other in (
        pickle.loads(pickle.dumps(network)),  # noqa: S301 - just made
        copy.copy(network),
        copy.deepcopy(network),
        Network(str(network)),
        Policy(network=network).network,
        RunRequest(("true",), network=network).policy().network,
    ):
        assert type(other) is Network and other == network
        assert other.rules == network.rules and other.proxied


def test_what_one_that_names_hosts_is_asked() -> None:
    assert CHOSEN.separate and CHOSEN.reaches_out and CHOSEN.proxied
    assert CHOSEN.allowed == ("pypi.org", "*.example.org:443")
    assert CHOSEN.denied == ("bad.example.org",) and CHOSEN.presets == ("npm",)
    assert CHOSEN.rules.judge("www.example.org", 443).allowed
    assert CHOSEN.rules.judge("registry.npmjs.org", 443).allowed
    assert not CHOSEN.rules.judge("bad.example.org", 443).allowed
    assert "pypi.org" in CHOSEN.described and "what npm needs" in CHOSEN.described
    assert eval(repr(CHOSEN), {"Network": Network}) == CHOSEN  # noqa: S307 - just made
    assert not Network.none.proxied and not Network.host.proxied


def test_what_is_no_rule_is_refused_before_anything_starts() -> None:
    for make in (
        lambda: Network.allow("https://pypi.org/simple"),
        lambda: Network.allow(presets=("nonsense",)),
        lambda: Network.allow("a.b, c.d"),
        lambda: Network("allow *"),
    ):
        with pytest.raises(EgressError) as caught:
            make()
        assert caught.value.kind is Kind.BAD_RULE


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


@pytest.mark.parametrize("word", ["", "None", "bridge", "allow ", "allowed", None, 0, []])
def test_any_other_word_is_refused(word: object) -> None:
    makers = [Network, lambda found: Policy(network=found)]
    if word is not None:  # which leaves it to the backend
        makers.append(lambda found: RunRequest((), network=found))
    for make in makers:
        with pytest.raises(SandboxError, match="is not known") as caught:
            make(word)
        assert caught.value.kind is Kind.INVALID
        assert '"none"' in caught.value.remedy
