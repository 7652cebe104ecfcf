"""The options of `podbot run` and `podbot shell`, read twice: simply, and by argparse.

Loading argparse and telling it everything takes as long as starting an interpreter, and most
command lines are plain. So plain ones are read here, from the same table, and whatever is not
plain (an abbreviation, a mistake, a cry for help) goes to argparse, which knows what to say.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, cast

from podbot.frozen import dataclass
from podbot.sandbox.network import Network

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

Decision = Literal["ask", "apply", "discard", "keep"]
Kind = Literal["value", "list", "decision", "flag"]

PODBOT_FAILED = 125
"""Podbot itself could not do it, as with env(1), timeout(1) and container engines."""

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

DECISIONS = {"--yes": "apply", "--keep": "keep", "--discard": "discard"}

# Each option: how it is read, what its value is called, and its line in `--help`.
OPTIONS: dict[str, tuple[Kind, str, str]] = {
    "--target": (
        "list", "DIR", "a folder whose changes are kept apart; may be repeated; default: this one"
    ),
    "--in": (
        "value", "ID", "go on in the changes of an earlier run: its id, the start of it, its name, "
        "or last"
    ),
    "--backend": (
        "value", "BACKEND", "where it runs: overlay (the default), container (Podman or Docker), "
        "local (ISOLATES NOTHING), or one that a package brings"
    ),
    "--image": ("value", "IMAGE", "the image of a container"),
    "--net": (
        "value", "", "the network inside: none (the default), the host's, or what --allow names"
    ),
    "--allow": (
        "list", "HOST[:PORT]", "let it reach this host, and none that is not named; or a preset, "
        "such as pypi or npm (podbot net presets); may be repeated"
    ),
    "--route": (
        "list", "NAME[=SOURCE]", "let it use anthropic, gemini or openai with a key that stays "
        "outside: NAME=env:VARIABLE, =file:PATH or =command:WORDS; NAME@URL for one that speaks "
        "the same; may be repeated"
    ),
    "--publish": (
        "list", "[HOST:]PORT", "have a port of the sandbox at this machine's loopback; HOST is the "
        "port of this machine (0: any) if it is another; may be repeated"
    ),
    "--hide": ("list", "PATH", "a path to hide inside, besides keys and logins"),
    "--show": ("list", "PATH", "an exception to what is hidden, such as ~/.netrc"),
    "--env": (
        "list", "NAME[=VALUE]", "pass a variable of yours on, or set one; others are not seen"
    ),
    "--name": ("value", "NAME", "call the run so, instead of by its id"),
    "--timeout": ("value", "TIME", "end it after this long: 90, 90s, 5m, 2h, 1d"),
    "--yes": (
        "decision", "", "apply the changes at the end, unless one would run by itself or conflicts"
    ),
    "--keep": ("decision", "", "keep them for later without asking"),
    "--discard": (
        "decision", "", "throw them away; with --in only these, and the earlier run stays as it was"
    ),
    "--json": ("flag", "", "tell the outcome as JSON on stderr"),
}  # fmt: skip


CALLED_ELSEWHERE = {
    "--title": "--name", "--label": "--name", "--apply": "--yes", "-y": "--yes", "-e": "--env",
    "--network": "--net", "--cwd": "--target", "--dir": "--target", "--workdir": "--target",
    "--allow-host": "--allow", "--allow-net": "--allow", "--broker": "--route", "--key": "--route",
}  # fmt: skip
"""What people try, and what it is called here."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the options say. ``decision`` is None if it was left to the end."""

    words: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    continue_in: str | None = None
    backend: str | None = None
    image: str | None = None
    net: Network | None = None
    allow: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    route: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    name: str | None = None
    timeout: float | None = None
    decision: Decision | None = None
    json: bool = False


def seconds(text: str) -> float:
    """A length of time: a number, and perhaps a unit."""
    unit = UNITS.get(text[-1:])
    try:
        found = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        found = -1.0
    if not 0 < found < 1e9:
        raise ValueError(f"{text!r} is not a length of time; try 90, 90s, 5m, 2h or 1d")
    return found


def network_of(net: Network | None, allow: Sequence[str]) -> Network | None:
    """The network that ``--net`` and ``--allow`` mean together; a word of these may be a preset.

    Raises `EgressError` for what is no host, and `ConfigError` if the two contradict each other.
    """
    if not allow:
        return net
    if net is not None and not net.proxied:
        from podbot.errors import ConfigError

        raise ConfigError(
            f"--allow and --net {net} contradict each other",
            remedy="leave out --net: --allow opens the network for these hosts only",
            field="net",
        )
    from podbot.egress import PRESETS

    hosts = [word for word in allow if word not in PRESETS]
    for word in hosts:
        _check_preset(word, PRESETS)
    return Network.allow(*hosts, presets=[word for word in allow if word in PRESETS])


def _check_preset(word: str, presets: Iterable[str]) -> None:
    """Refuse what is more likely a preset mistyped than a host: one word, and nearly its name."""
    from podbot.egress.presets import NOT_BY_NAME

    if not word.isidentifier():  # with a dot, a port or a path it is a host
        return
    from podbot.nearest import nearest

    name = word.lower()
    near = nearest(name, presets)
    if near is None and name not in NOT_BY_NAME:
        return
    from podbot.errors import ConfigError

    as_host = f"podbot net presets lists them; a host of that name has its port: {word}:443"
    raise ConfigError(
        f"there is no preset {word!r}" + (f"; did you mean {near}?" if near else ""),
        remedy=NOT_BY_NAME.get(name, as_host),
        field="allow",
    )


def absolute(path: str) -> str:
    """A path as a person meant it."""
    return os.path.abspath(os.path.expanduser(path))


def plain(words: list[str]) -> Options | None:
    """The options of a plain command line; None for what argparse must look at."""
    values: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    decision, json, at = None, False, 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].partition("=")
        at += 1
        kind = OPTIONS.get(name, (None,))[0]
        if kind in ("value", "list"):
            if not equals:
                if at == len(words) or words[at].startswith("-"):
                    return None
                value = words[at]
                at += 1
            values[name] = value
            lists.setdefault(name, []).append(value)
        elif equals or kind is None:
            return None
        elif kind == "flag":
            json = True
        elif decision not in (None, DECISIONS[name]):
            return None
        else:
            decision = DECISIONS[name]
    try:
        timeout = seconds(values["--timeout"]) if "--timeout" in values else None
    except ValueError:
        return None
    net = values.get("--net")
    if net is not None and net not in Network.WORDS:
        return None
    return Options(
        words=tuple(words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:]),
        target=tuple(lists.get("--target", ())),
        continue_in=values.get("--in"),
        backend=values.get("--backend"),
        image=values.get("--image"),
        net=None if net is None else Network(net),
        allow=tuple(lists.get("--allow", ())),
        publish=tuple(lists.get("--publish", ())),
        route=tuple(lists.get("--route", ())),
        hide=tuple(lists.get("--hide", ())),
        show=tuple(lists.get("--show", ())),
        env=tuple(lists.get("--env", ())),
        name=values.get("--name"),
        timeout=timeout,
        decision=cast("Decision | None", decision),
        json=json,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Tell argparse of the same."""

    from podbot.cli.usage import Parser

    decisions = parser.add_mutually_exclusive_group()
    for name, (kind, value, help_line) in OPTIONS.items():
        if kind == "list":
            parser.add_argument(name, action="append", default=[], metavar=value, help=help_line)
        elif kind == "decision":
            decisions.add_argument(
                name, dest="decision", action="store_const", const=DECISIONS[name], help=help_line
            )
        elif kind == "flag":
            parser.add_argument(name, action="store_true", help=help_line)
        elif name == "--net":
            parser.add_argument(name, choices=Network.WORDS, help=help_line)
        elif name == "--timeout":
            parser.add_argument(name, type=_seconds, metavar=value, help=help_line)
        else:
            dest = "continue_in" if name == "--in" else name.removeprefix("--")
            parser.add_argument(name, dest=dest, metavar=value, help=help_line)
    if isinstance(parser, Parser):
        parser.called_elsewhere = CALLED_ELSEWHERE
        parser.wrong = PODBOT_FAILED  # 2 would look like an exit code of the command


def _seconds(text: str) -> float:
    import argparse

    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def options_of(arguments: argparse.Namespace) -> Options:
    """What argparse found."""
    words = getattr(arguments, "words", [])
    return Options(
        words=tuple(words[1:] if words[:1] == ["--"] else words),
        target=tuple(arguments.target),
        continue_in=arguments.continue_in,
        backend=arguments.backend,
        image=arguments.image,
        net=None if arguments.net is None else Network(arguments.net),
        allow=tuple(arguments.allow),
        publish=tuple(arguments.publish),
        route=tuple(arguments.route),
        hide=tuple(arguments.hide),
        show=tuple(arguments.show),
        env=tuple(arguments.env),
        name=arguments.name,
        timeout=arguments.timeout,
        decision=arguments.decision,
        json=arguments.json,
    )
