"""`podbot net`: what of the network a run reached or was refused, and what rules say of a host.

Only `allow` changes what a sandbox may reach, and nothing is connected to.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from typing import TYPE_CHECKING

from podbot.cli import wording
from podbot.cli.run_options import network_of
from podbot.cli.talk import tell
from podbot.cli.wording import Column
from podbot.errors import ConfigError
from podbot.frozen import dataclass, replace
from podbot.sandbox.network import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podbot.egress import Judgement, Rules
    from podbot.review.connections import Contact
    from podbot.runs.records import Entry
    from podbot.sandbox.connections import Line

ABOUT = """\
See what of the network runs reached, what they were refused, and why. A run reaches the
hosts that `podbot run --allow HOST` names, and no others."""

EXAMPLES = """\
examples:
  podbot run --allow pypi -- pip download six   reach what pip needs, and nothing else
  podbot net log last                           what did the latest run connect to?
  podbot net log last --json                    each connection, as data
  podbot net log last --follow                  each as it ends, from a second terminal
  podbot net allow last files.example.org       let a run that lives reach this too
  podbot net explain evil.example --in last     would that run have reached it, and why not?
  podbot net explain files.pythonhosted.org --allow pypi
  podbot net presets                            hosts by the name of what they are for

exit codes: 0 done (explain: it would be reached), 1 explain: it would be refused, 2 it
could not be told."""

DONE, REFUSED = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs of `podbot net`."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    verbs = parser.add_subparsers(dest="verb", metavar="verb", required=True)
    log = verbs.add_parser("log", help="the connections of a run, by host")
    log.add_argument("id", metavar="ID", nargs="?", default="last", help="a run; default: last")
    log.add_argument("--json", action="store_true", help="print each connection, as JSON")
    log.add_argument(
        "--follow",
        action="store_true",
        help="print each connection as it ends, while the run lives",
    )
    allow = verbs.add_parser("allow", help="let a run that lives reach one host more")
    allow.add_argument("id", metavar="ID", help="the run: its id, the start of it, its name, last")
    allow.add_argument(
        "hosts", metavar="HOST[:PORT]", nargs="+",
        help="a host, or a preset, as podbot run --allow takes them",
    )  # fmt: skip
    explain = verbs.add_parser("explain", help="whether a host would be reached, and why not")
    explain.add_argument(
        "host", metavar="HOST[:PORT]", help="or a URL, or a request: \"GET http://HOST/PATH\"; the "
        "port is 443 unless it is said",
    )  # fmt: skip
    explain.add_argument("--in", dest="run", metavar="ID", help="by the rules of this run")
    explain.add_argument(
        "--allow", action="append", default=[], metavar="HOST[:PORT]",
        help="by these rules, as podbot run takes them; may be repeated",
    )  # fmt: skip
    explain.add_argument("--json", action="store_true", help="print the answer as JSON")
    presets = verbs.add_parser("presets", help="the presets there are, and their hosts")
    presets.add_argument("--json", action="store_true", help="print them as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for."""
    verbs = {"log": _log, "allow": _allow, "explain": _explain, "presets": _presets}
    return verbs[arguments.verb](arguments)


def _log(arguments: argparse.Namespace) -> int:
    from podbot.review import connections
    from podbot.runs import records

    entry = connections.find(arguments.id, records.here())
    if arguments.follow:
        return _follow(entry, as_json=arguments.json)
    if arguments.json:
        from podbot.cli import as_data

        lines, left_out = connections.lines(entry)
        as_data.show_long({"id": entry.id, "left_out": left_out}, "connections", lines)
        return DONE
    if arguments.id == records.LAST:
        tell(f"run {wording.name(entry.called)}: {wording.name(entry.made_by)}")
    found = connections.contacts(entry)
    if found:
        print("\n".join(_table(found)))
        for text in _left_out(connections.lines(entry)):
            tell(text)
    else:
        tell(_nothing_noted(entry))
    return DONE


def _nothing_noted(entry: Entry) -> str:
    from podbot.review import connections

    run = f"run {wording.name(entry.called)}"
    network = None if entry.record is None else entry.record.network
    if network is not None and Network(network).proxied:
        if entry.status == "gone" and not connections.is_remembered(entry):
            return f"what {run} connected to is gone with its changes"
        return f"{run} connected to nothing (its network was {wording.name(network)})"
    why = "" if network is None else f" (its network was {wording.name(network)})"
    return f"{run} went through no proxy{why}"


def _follow(entry: Entry, *, as_json: bool) -> int:
    """Print connections as they are noted, one line each, until the run is over."""
    from podbot.review import connections

    for line in connections.followed(entry):
        if as_json:
            print(json.dumps(line), flush=True)
        else:
            contact = connections.gathered((line,))[0]
            place = f"{wording.name(contact.host) or wording.UNKNOWN}:{contact.port}"
            size = f"{wording.size(contact.sent)} sent, {wording.size(contact.received)} received"
            why = f" ({wording.text(contact.reason)})" if contact.reason else ""
            print(f"{wording.name(contact.verdict)} {place}, {size}{why}", flush=True)
    return DONE


def _allow(arguments: argparse.Namespace) -> int:
    from podbot.egress import PRESETS
    from podbot.review import finding
    from podbot.runs import records
    from podbot.sandbox import control

    entry = finding.find(arguments.id, records.here())
    called = wording.name(entry.called)
    if entry.layer is None or not entry.live:
        raise ConfigError(
            f"run {called} does not run any more",
            remedy="podbot run --allow HOST starts one that may reach a host",
        )
    record = entry.record
    network = None if record is None else Network(record.network)
    if network is not None and not network.proxied:
        raise ConfigError(
            f"run {called} has no proxy that could let hosts through: its network is {network}",
            remedy="start it with --allow HOST, or --net allow",
        )
    words = [each for host in arguments.hosts for each in PRESETS.get(host, (host,))]
    control.allow(entry.layer, words)
    tell(f"run {called} may reach {', '.join(map(wording.name, words))} from now on")
    return DONE


def _left_out(noted: tuple[Sequence[Line], int]) -> list[str]:
    return [f"{wording.count(noted[1], 'connection')} more were not noted"] if noted[1] else []


def _table(found: Sequence[Contact]) -> list[str]:
    columns = (
        Column("HOST", gives_way=True),
        Column("PORT"),
        Column("VERDICT"),
        Column("TIMES"),
        Column("SENT"),
        Column("RECEIVED"),
        Column("WHY", gives_way=True),
    )
    rows = [
        (
            wording.name(each.host) or wording.UNKNOWN,
            str(each.port),
            wording.name(each.verdict),
            str(each.count),
            wording.size(each.sent),
            wording.size(each.received),
            wording.text(each.reason),
        )
        for each in found
    ]
    return wording.table(columns, rows, wording.display_of(sys.stdout))


def _explain(arguments: argparse.Namespace) -> int:
    asked = _Asked.of(arguments.host)
    rules = _rules(arguments)
    found, plain = asked.judged(rules)
    if arguments.json:
        from podbot.cli import as_data

        answer = {"host": asked.host, "port": asked.port, "allowed": found.allowed}
        answer |= {"rule": found.rule, "plain_http_only": plain}
        as_data.show({**answer, "reason": found.reason, "would_allow": found.would_allow})
    else:
        _tell(asked, found, plain)
    return DONE if found.allowed else REFUSED


def _tell(asked: _Asked, found: Judgement, plain: bool) -> None:
    place = f"{wording.name(asked.host)}:{asked.port}"
    if found.allowed:
        how = ", by requests of plain HTTP only" if plain else ""
        tell(f"{place} would be reached{how}: {wording.text(found.rule or '')} allows it")
        tell("(unless its name leads to an address of this machine or of a private network)")
        return
    tell(f"{place} would be refused: {wording.text(found.reason)}")
    if found.would_allow is not None:
        tell(f"to allow it: podbot run --allow {shlex.quote(found.would_allow)}")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What somebody asks about: a tunnel to a host, or a request of plain HTTP."""

    host: str
    port: int
    method: str = "CONNECT"
    path: str | None = None
    is_said: bool = False
    """Whether it is said which of the two it is."""

    @classmethod
    def of(cls, text: str) -> _Asked:
        """What is meant by ``[METHOD ]HOST[:PORT]`` or by a URL."""
        match = re.fullmatch(r"(?:([A-Z]+) +)?(?:([A-Za-z]+)://)?(.*)", text, re.DOTALL)
        assert match is not None  # noqa: S101 - it takes any text
        method, scheme, rest = match[1], (match[2] or "").lower(), match[3]
        place, slash, path = re.split("[?#]", rest)[0].partition("/")
        if scheme:
            place = place.rpartition("@")[2]
        host, colon, digits = place.rpartition(":")
        port = 80 if scheme == "http" or (method and scheme != "https") else 443
        if colon and digits.isdigit() and len(digits) < 6 and not host.endswith(":"):
            place, port = host, int(digits)
        place = place.strip("[]")
        if scheme == "http" or (method and scheme != "https"):
            return cls(place, port, method or "GET", slash + path or "/", True)
        return cls(place, port, is_said=bool(scheme))

    def judged(self, rules: Rules) -> tuple[Judgement, bool]:
        """What rules say of it, and whether they allow requests of plain HTTP alone.

        Of a host and a port alone that is the answer where 443, the port of tunnels, is not meant.
        """
        found = rules.judge(self.host, self.port, self.method, self.path)
        if found.allowed or self.is_said or self.port == 443 or found.rule is None:
            return found, False
        if found.rule in rules.denied:
            return found, False
        return replace(found, allowed=True, reason="", would_allow=None), True


def _rules(arguments: argparse.Namespace) -> Rules:
    """The rules that are asked about."""
    from podbot.egress import Rules

    if arguments.run is None:
        network = network_of(None, arguments.allow)
        return Rules() if network is None else network.rules
    if arguments.allow:
        raise ConfigError("--in and --allow exclude each other", remedy="leave one of them out")
    from podbot.review import connections
    from podbot.runs import records

    record = connections.find(arguments.run, records.here()).record
    network = None if record is None else Network(record.network)
    if network is not None and not network.separate:
        raise ConfigError(
            f"run {arguments.run} had the network of this machine: no rules held for it",
            remedy="start it with --allow HOST instead of --net host",
        )
    return network.rules if network is not None and network.proxied else Rules()


def _presets(arguments: argparse.Namespace) -> int:
    from podbot.egress import PRESETS

    if arguments.json:
        from podbot.cli import as_data

        as_data.show({"presets": {name: list(words) for name, words in PRESETS.items()}})
        return DONE
    columns = (Column("PRESET"), Column("ALLOWS"))
    rows = [
        (name if number == 0 else "", word)
        for name, words in PRESETS.items()
        for number, word in enumerate(words)
    ]
    print("\n".join(wording.table(columns, rows, wording.display_of(sys.stdout))))
    return DONE
