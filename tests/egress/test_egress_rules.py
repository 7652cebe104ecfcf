"""Words that allow and deny: what they mean, and how they are refused."""

from __future__ import annotations

import copy
import pickle

import pytest

from podbot.egress import HOST_NAME, PRESETS, EgressError, Rule, Rules
from podbot.egress._addresses import kind_of
from podbot.egress.names import OddHostError, host_of
from podbot.errors import Kind


def allows(rules: Rules, host: str, port: int, method: str = "CONNECT", path: str = "") -> bool:
    return rules.judge(host, port, method, path or None).allowed


def test_nothing_is_allowed_unless_a_word_says_so() -> None:
    assert not allows(Rules(), "pypi.org", 443)
    assert allows(Rules.of("pypi.org"), "pypi.org", 443)
    assert allows(Rules.of("pypi.org"), "pypi.org", 80)
    assert not allows(Rules.of("pypi.org"), "pypi.org", 22)
    assert not allows(Rules.of("pypi.org"), "files.pypi.org", 443)
    assert not allows(Rules.of("pypi.org"), "evilpypi.org", 443)
    assert not allows(Rules.of("pypi.org"), "pypi.org.evil.example", 443)


def test_a_star_means_what_is_below_and_not_the_name_itself() -> None:
    rules = Rules.of("*.example.org")

    assert allows(rules, "a.example.org", 443) and allows(rules, "a.b.example.org", 443)
    assert not allows(rules, "example.org", 443)
    assert not allows(rules, "anexample.org", 443)


def test_a_port_is_the_only_one_and_a_star_is_any() -> None:
    assert allows(Rules.of("a.example:8443"), "a.example", 8443)
    assert not allows(Rules.of("a.example:8443"), "a.example", 443)
    assert allows(Rules.of("a.example:*"), "a.example", 22)


def test_denying_wins_whatever_the_port() -> None:
    rules = Rules.of("*.example.org:*", deny=("bad.example.org",))

    assert allows(rules, "good.example.org", 22)
    for port in (22, 80, 443):
        judgement = rules.judge("BAD.example.org.", port)
        assert not judgement.allowed and judgement.rule == "bad.example.org"
        assert judgement.would_allow is None


def test_methods_and_paths_are_for_plain_http_alone() -> None:
    rules = Rules.of("GET,HEAD a.example:80/debian/")

    assert allows(rules, "a.example", 80, "GET", "/debian/x")
    assert allows(rules, "a.example", 80, "HEAD", "/debian/")
    assert not allows(rules, "a.example", 80, "POST", "/debian/x")
    assert not allows(rules, "a.example", 80, "GET", "/other")
    for tunnel in ("CONNECT", "SOCKS5"):
        judgement = rules.judge("a.example", 80, tunnel)
        assert not judgement.allowed and "some requests" in judgement.reason
        assert judgement.rule == "GET,HEAD a.example:80/debian/"


@pytest.mark.parametrize(
    "path",
    [
        "/open/../closed",
        "/open/%2e%2e/closed",
        "/open/%2E./closed",
        "/open/%252e%252e/closed",
        "/open/..;x/closed",
        "/open%2f..%2fclosed",
        "/open/%5c..%5cclosed",
        "/open/..\\closed",
        "/open//closed",
        "/open/%00",
        "/opened",
        "/OPEN/x",
        "/open%252fx",
    ],
)
def test_a_path_with_a_second_reading_is_below_nothing(path: str) -> None:
    assert not allows(Rules.of("a.example/open"), "a.example", 80, "GET", path)
    assert allows(Rules.of("a.example/open"), "a.example", 80, "GET", "/open/a%20b/c")
    assert allows(Rules.of("a.example/open"), "a.example", 80, "GET", "/open")


def test_a_denied_path_is_not_reached_by_a_second_reading_or_a_tunnel() -> None:
    rules = Rules.of("a.example", deny=("a.example/closed",))

    assert allows(rules, "a.example", 80, "GET", "/open")
    assert not allows(rules, "a.example", 80, "GET", "/closed/x")
    assert not allows(rules, "a.example", 80, "GET", "/open/%2e%2e/closed")
    assert not allows(rules, "a.example", 80, "CONNECT")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("münchen.example", "xn--mnchen-3ya.example"),
        ("XN--MNCHEN-3YA.example", "xn--mnchen-3ya.example"),
    ],
)
def test_a_name_has_one_spelling(written: str, meant: str) -> None:
    assert Rule.of(written).host == meant
    assert allows(Rules.of(written), meant.upper() + ".", 443)
    assert Rules.of(written).words == (written,)


ODD = [
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "2130706433",
    "017700000001",
    "127.1",
    "127.0.1",
    "127.0.0.1.1",
    "127.0.0.01",
    "127.0.0.1 ",
    "127.0.0.0x1",
    "1.2.3.0x",
    "[::1",
    "::1]",
    "[::1%lo]",
    "[fe80::1%25eth0]",
    "[1.2.3.4]",
    "1::2::3",
    "a..b",
    ".a",
    "a.example..",
    "",
    ".",
    "a b",
    "a\0.example",
    "a.example\0.evil.example",
    "a%00.example",
    "a%2eexample",
    "a/example",
    "a@example",
    "a\\example",
    "a\texample",
    "\uff41.example",
    "a\u3002example",
    "\uff11\uff12\uff17.0.0.1",
    "x" * 64 + ".example",
    "a." * 127 + "example",
]


@pytest.mark.parametrize("host", ODD)
def test_a_host_with_several_readings_or_none_is_refused(host: str) -> None:
    with pytest.raises(OddHostError):
        host_of(host)
    rules = Rules.of("127.0.0.2.example", "*.example:*", "93.184.216.34")
    assert not allows(rules, host, 443)


def test_an_address_is_allowed_only_if_it_is_named_itself() -> None:
    rules = Rules.of("93.184.216.34", "10.1.2.3:8080", "[2606:4700::1111]", "a.example")

    assert allows(rules, "93.184.216.34", 443)
    assert not allows(rules, "93.184.216.35", 443)
    assert allows(rules, "10.1.2.3", 8080) and not allows(rules, "10.1.2.3", 443)
    assert allows(rules, "[2606:4700:0::1111]", 443) and allows(rules, "2606:4700::1111", 443)
    assert not allows(rules, "[::ffff:93.184.216.34]", 443)
    assert not allows(rules, "[::ffff:10.1.2.3]", 8080)
    near = rules.judge("10.9.9.9", 443)
    assert "a private address" in near.reason and near.would_allow == "10.9.9.9"


NOT_PUBLIC = {
    "a loopback address": ["127.0.0.1", "127.255.255.254", "::1"],
    "an address of this machine": ["0.0.0.0", "0.1.2.3", "::"],  # noqa: S104 - nobody binds it
    "a private address": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd12::1"],
    "a link-local address": ["169.254.1.1", "fe80::1", "febf::1", "fe80::1%eth0"],
    "a metadata address": ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "168.63.129.16"],
    "an address of a carrier's NAT": ["100.64.0.1", "100.127.255.255"],
    "a multicast address": ["224.0.0.1", "239.255.255.255", "ff02::1"],
    "a reserved address": ["192.0.2.1", "198.18.0.1", "240.0.0.1", "255.255.255.255", "2001:db8::1",
                           "4000::1", "fec0::1", "100::1"],
    "an IPv4 address in disguise": ["::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1",
                                    "2002:7f00:1::", "2001::1", "64:ff9b:1::1"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("address", "kind"), [(each, kind) for kind, all_ in NOT_PUBLIC.items() for each in all_]
)
def test_a_name_may_not_lead_to_an_address_that_is_not_of_the_internet(
    address: str, kind: str
) -> None:
    assert kind_of(address) == kind
    judgement = Rules.of("a.example").judge_address(address, 443)
    assert not judgement.allowed and kind in judgement.reason


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "64:ff9b::808:808", "172.32.0.1"]
)
def test_a_name_may_lead_to_an_address_of_the_internet(address: str) -> None:
    assert Rules.of("a.example").judge_address(address, 443).allowed


def test_a_translated_address_is_what_it_is_translated_to() -> None:
    assert kind_of("64:ff9b::7f00:1") == "a loopback address"
    assert kind_of("64:ff9b::a9fe:a9fe") == "a metadata address"


def test_a_private_address_that_is_named_may_be_led_to_and_a_denied_one_not() -> None:
    rules = Rules.of("git.example", "10.0.0.5:443", deny=("93.184.216.34",))

    assert rules.judge_address("10.0.0.5", 443).allowed
    assert not rules.judge_address("10.0.0.5", 80).allowed
    assert not rules.judge_address("93.184.216.34", 443).allowed


def test_the_hosts_loopback_is_named_port_by_port_and_is_below_nothing() -> None:
    rules = Rules.of(f"{HOST_NAME}:8080", "*.podbot.internal:*", "*.internal:*")

    assert allows(rules, HOST_NAME, 8080) and allows(rules, HOST_NAME.upper(), 8080)
    assert not allows(rules, HOST_NAME, 8081)
    assert rules.judge(HOST_NAME, 8081).would_allow == f"{HOST_NAME}:8081"
    assert not allows(rules, "127.0.0.1", 8080) and not allows(rules, "localhost", 8080)


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("https://pypi.org/simple", "pypi.org:443"),
        ("http://pypi.org:8080", "pypi.org:8080"),
        ("https://user:secret@pypi.org/", "pypi.org:443"),
        ("*", "host"),
        ("*.*.example", "first"),
        ("a.*.example", "first"),
        ("*example.org", "first"),
        ("localhost:80", f"{HOST_NAME}:PORT"),
        ("127.0.0.1:80", f"{HOST_NAME}:PORT"),
        ("[::1]:80", f"{HOST_NAME}:PORT"),
        (HOST_NAME, f"{HOST_NAME}:PORT"),
        (f"{HOST_NAME}:*", f"{HOST_NAME}:PORT"),
        ("10.0.0.0/8", "each address"),
        ("a.example/x/../y", "plainly"),
        ("CONNECT a.example", "method"),
        ("[::ffff:127.0.0.1]", None),
        ("0.0.0.0", None),  # noqa: S104 - nobody binds it
        ("224.0.0.1", None),
        ("*.1.2.3.4", None),
        ("127.1:80", None),
        ("a.example:0", None),
        ("a.example:65536", None),
        ("a.example:https", None),
        ("a b", None),
        ("", None),
        ("straße.example", None),
        ("get a.example", None),
    ],
)
def test_a_word_that_says_less_or_more_than_it_seems_is_refused(
    word: str, remedy: str | None
) -> None:
    with pytest.raises(EgressError) as caught:
        Rules.of(word)

    assert caught.value.kind is Kind.BAD_RULE and repr(word) in caught.value.message
    if remedy is not None:
        assert remedy in (caught.value.remedy or "")


def test_rules_are_values() -> None:
    rules = Rules.of("b.example", "a.example", "b.example", deny=("c.example",))

    assert rules.words == ("b.example", "a.example") and rules.denied == ("c.example",)
    assert rules == Rules.of("b.example", "a.example", deny=["c.example"])
    assert hash(rules) == hash(copy.deepcopy(rules))
    for other in (pickle.loads(pickle.dumps(rules)), copy.copy(rules)):  # noqa: S301 - just made
        assert other == rules and allows(other, "a.example", 443)
    more = rules.allow("d.example").deny("a.example")
    assert allows(more, "d.example", 443) and not allows(more, "a.example", 443)
    assert not allows(rules, "d.example", 443) and allows(rules, "a.example", 443)


def test_a_list_of_one_word_is_not_taken_letter_by_letter() -> None:
    with pytest.raises(EgressError, match="as a list"):
        Rules.of("a.example", deny="bad.example")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_words_that_are_rules(name: str) -> None:
    assert Rules.preset(name).words == PRESETS[name]
    assert Rules.of("a.example", presets=(name,)).words == ("a.example", *PRESETS[name])


def test_a_preset_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(EgressError) as caught:
        Rules.preset("pip")
    assert "pypi" in (caught.value.remedy or "")
    with pytest.raises(EgressError) as caught:
        Rules.of(presets=("github",))
    assert "push" in (caught.value.remedy or "")


# Hosts that are contacted without being asked to


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ((), False),
        (("*.io",), False),
        (("*.test.io",), True),
        (("us.test.io",), True),
        (("*.us.test.io",), False),  # which is below that name
        (("other.test.io",), False),
        (("us.test.io:8443",), False),
        (("GET us.test.io",), False),
    ],
)
def test_what_nobody_asked_for_is_reached_only_if_it_is_named_itself(
    words: tuple[str, ...], allowed: bool
) -> None:
    found = Rules.of(*words).sparing("*.test.io").judge("us.test.io", 443)

    assert found.allowed is allowed
    assert allowed or found.would_allow == "us.test.io"


def test_a_name_that_is_spared_is_so_in_rules_that_are_made_of_these() -> None:
    rules = Rules.of("*.example").sparing("a.example").allow("b.test").deny("c.test")
    assert not rules.judge("a.example", 443).allowed
    assert rules.judge("b.example", 443).allowed
    assert rules.allow("a.example").judge("a.example", 443).allowed
    assert not rules.allow("a.example").deny("a.example").judge("a.example", 443).allowed
