"""What network a sandbox has: `Network`. The only module that knows the words for it.

    Policy(network=Network.none)                  # loopback only; the default
    Policy(network="host")                        # the plain word means the same, wherever one is
    Policy(network=Network.allow("pypi.org"))     # these hosts, through a proxy outside

A network **is** its word, a string: records, JSON and command lines hold it as it stands, and it
equals the plain word. Code of podbot's compares no words, it asks: `separate`, `reaches_out`,
`proxied`, `described`. So a further kind is added here and nowhere else.
"""

from __future__ import annotations

from podbot.errors import Kind, SandboxError

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import ClassVar, Literal

    from podbot.egress import Rules

    Word = Literal["none", "host", "allow"]

_DENIED, _PRESET = "!", "@"
_BETWEEN = ", "


class Network(str):
    """The network of a sandbox, made of its word: ``Network("none")`` is `Network.none`.

    - `Network.none`: loopback only, and of the sandbox's own.
    - `Network.host`: the network of this machine as it is, its loopback included.
    - `Network.allow`: loopback only, and on it a proxy of podbot's, which is outside and lets
      through what these rules allow. ``"allow"`` is one that allows nothing, and tells of it.

    Raises `SandboxError` (kind ``invalid``) for any other word, and for rules `EgressError`.
    """

    __slots__ = ()

    WORDS: ClassVar[tuple[str, ...]] = ("none", "host", "allow")
    """The words, the default first; behind the last there may be rules."""

    none: ClassVar[Network]
    host: ClassVar[Network]

    def __new__(cls, word: str) -> Network:
        """The network that this word means."""
        given: object = word  # callers need not be typed
        if not isinstance(given, str):
            raise _unknown(given)
        made = _MADE.get(given)
        if made is not None:  # each of these is one object, for those who ask with `is`
            return made
        kind, space, rules = given.partition(" ")
        if kind != "allow" or (space and not rules.strip()):
            raise _unknown(given)
        items = tuple(rules.split(_BETWEEN)) if rules else ()
        denied = [item[1:] for item in items if item.startswith(_DENIED)]
        presets = [item[1:] for item in items if item.startswith(_PRESET)]
        return cls.allow(
            *(item for item in items if not item.startswith((_DENIED, _PRESET))),
            deny=denied,
            presets=presets,
        )

    @classmethod
    def allow(cls, *hosts: str, deny: Iterable[str] = (), presets: Iterable[str] = ()) -> Network:
        """Only what these rules allow (see `podbot.egress.Rules`), through a proxy outside.

        ``deny`` wins over both others. ``presets`` are hosts by the name of what they are for, such
        as ``pypi``. Raises `EgressError` for what is no rule.
        """
        from podbot.egress import Rules

        denied, named = tuple(deny), tuple(presets)
        Rules.of(*hosts, deny=denied, presets=named)
        items = (*hosts, *(_DENIED + each for each in denied), *(_PRESET + each for each in named))
        if not items:
            return str.__new__(cls, "allow")
        return str.__new__(cls, f"allow {_BETWEEN.join(dict.fromkeys(items))}")

    @property
    def separate(self) -> bool:
        """Whether the sandbox has a network namespace of its own."""
        return self != Network.host

    @property
    def reaches_out(self) -> bool:
        """Whether anything beyond the sandbox can be reached, this machine's services included."""
        return self != Network.none

    @property
    def proxied(self) -> bool:
        """Whether what is reached is reached through podbot's proxy."""
        return self.startswith("allow")

    @property
    def _items(self) -> tuple[str, ...]:
        return tuple(self[len("allow ") :].split(_BETWEEN)) if self != "allow" else ()

    @property
    def allowed(self) -> tuple[str, ...]:
        """The hosts that are named."""
        return tuple(each for each in self._items if not each.startswith((_DENIED, _PRESET)))

    @property
    def denied(self) -> tuple[str, ...]:
        """The hosts that are denied whatever else allows them."""
        return tuple(each[1:] for each in self._items if each.startswith(_DENIED))

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets that are named."""
        return tuple(each[1:] for each in self._items if each.startswith(_PRESET))

    @property
    def rules(self) -> Rules:
        """What the proxy lets through; only of one that is `proxied`."""
        from podbot.egress import Rules
        from podbot.sandbox import telemetry

        rules = Rules.of(*self.allowed, deny=self.denied, presets=self.presets)
        return rules.sparing(*telemetry.HOSTS)

    @property
    def port(self) -> int | None:
        """Where on the sandbox's loopback the proxy is, if there is one."""
        if not self.proxied:
            return None
        from podbot.sandbox import gateway

        return gateway.PORT

    @property
    def variables(self) -> Mapping[str, str]:
        """What programs inside find the proxy by."""
        if not self.proxied:
            return {}
        from podbot.sandbox import gateway

        return gateway.VARIABLES

    @property
    def described(self) -> str:
        """What commands have, to put into a sentence."""
        if not self.proxied:
            return "the network of this machine" if self == Network.host else "no network"
        found = [*self.allowed, *(f"what {preset} needs" for preset in self.presets)]
        if not found:
            return "no network but a proxy that allows nothing"
        return f"no network but, through the proxy in $HTTPS_PROXY, {_BETWEEN.join(found)}"

    def __repr__(self) -> str:
        if not self.proxied:
            return f"Network.{self}"
        given = [repr(each) for each in self.allowed]
        given += [f"deny={self.denied!r}"] if self.denied else []
        given += [f"presets={self.presets!r}"] if self.presets else []
        return f"Network.allow({_BETWEEN.join(given)})"

    if TYPE_CHECKING:
        # A field of this type may be given as the plain word. Its class makes a `Network` of it
        # in `__post_init__`; type checkers learn it from these two, which do not exist.
        def __get__(self, instance: object, owner: object = None) -> Network: ...
        def __set__(self, instance: object, value: Network | Word) -> None: ...


def _unknown(word: object) -> SandboxError:
    return SandboxError(
        f"network={word!r:.200} is not known",
        kind=Kind.INVALID,
        remedy='use "none" (loopback only), "host", or Network.allow("HOST", …)',
    )


_MADE = {word: str.__new__(Network, word) for word in ("none", "host")}
Network.none, Network.host = _MADE["none"], _MADE["host"]


def gateway_only(network: Network) -> str:
    """By what a network that is `Network.proxied` is enforced, for a guarantee."""
    what = [*network.allowed, *(f"preset {preset}" for preset in network.presets)]
    what += [f"not {host}" for host in network.denied]
    through = _BETWEEN.join(what) or "nothing"
    return f"net namespace with loopback only; podbot's proxy outside lets through: {through}"
