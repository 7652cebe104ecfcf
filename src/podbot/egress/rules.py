"""Words that allow hosts, and words that deny them: a frozen value that judges.

A word is ``[METHOD,… ]HOST[:PORT][/PATH]``. The host is a name, ``*.`` and a name (what is below
it, not itself), or an address. Without a port a word allows 80 and 443 (``:*`` is any), and denies
all. With methods or a path it is about plain HTTP, and allows no tunnel. Denying wins.

Judging looks nothing up and opens nothing; what a name resolves to is judged by its own question.
"""

from __future__ import annotations

import re
from functools import lru_cache

from podbot.egress.names import HOST_NAME, OddHostError, host_of, in_ascii, is_address, shown
from podbot.errors import EgressError, Kind
from podbot.frozen import dataclass

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

USUAL_PORTS = (80, 443)
TUNNELS = ("CONNECT", "SOCKS5")
"""Methods of which nothing but host and port is seen."""

_WORD = re.compile(
    r"(?:(?P<methods>[A-Z]+(?:,[A-Z]+)*) )?"
    r"(?P<below>\*\.)?(?P<host>\[[^\]\s]+\]|[^\s:/\[\]*@?#\\]+)"
    r"(?::(?P<port>[0-9]{1,5}|\*))?"
    r"(?P<path>/[^\s?#\\]*)?"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One word, taken apart."""

    word: str
    host: str
    """In its one spelling."""
    below: bool = False
    """Whether it is about names below the host, and not about the host itself."""
    ports: tuple[int, ...] = ()
    """Empty: all of them."""
    methods: tuple[str, ...] = ()
    path: str = ""

    @classmethod
    def of(cls, word: str, *, denying: bool = False) -> Rule:
        """The rule that a word says; `EgressError` if it says none."""
        return _rule(word, denying)

    @property
    def is_plain(self) -> bool:
        """Whether it is about plain HTTP only."""
        return bool(self.methods or self.path)

    def is_about(self, host: str, port: int) -> bool:
        """Whether host and port are those of the rule."""
        if self.ports and port not in self.ports:
            return False
        if self.below:
            # The name of the host's loopback is below nothing: it is named, or not meant.
            return host.endswith(f".{self.host}") and host != HOST_NAME and not is_address(host)
        return host == self.host

    def is_within(self, other: Rule) -> bool:
        """Whether all of its hosts are hosts of another rule."""
        if self.host == other.host:
            return self.below == other.below
        return other.below and self.host.endswith(f".{other.host}")

    def allows(self, method: str, path: str | None) -> bool:
        """Whether a request to its host is surely one of those it is about."""
        if not self.is_plain:
            return True
        if method in TUNNELS or path is None or (self.methods and method not in self.methods):
            return False
        return not self.path or (is_straight(path) and _is_below(path, self.path))

    def denies(self, method: str, path: str | None) -> bool:
        """Whether a request to its host may be one of those it is about: a tunnel hides them."""
        if not self.is_plain or method in TUNNELS or path is None:
            return True
        if self.methods and method not in self.methods:
            return False
        return not self.path or not is_straight(path) or _is_below(path, self.path)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What rules say of one host, or of one request to it."""

    allowed: bool
    rule: str | None = None
    reason: str = ""
    would_allow: str | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What is allowed, and what is denied all the same. Nothing is, unless a word says so.

    ``unasked`` are hosts that programs contact without being asked to: a wider word does not allow
    them, only one that names them.
    """

    words: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for word in self.words:
            _rule(word, False)
        for word in (*self.denied, *self.unasked):
            _rule(word, True)

    @classmethod
    def of(cls, *words: str, deny: Iterable[str] = (), presets: Iterable[str] = ()) -> Rules:
        """Rules of these words, and of those of presets by name."""
        if isinstance(deny, str) or isinstance(presets, str):
            raise EgressError(
                "words to deny, and names of presets, are given as a list",
                kind=Kind.BAD_RULE,
                remedy="put the one there is into a tuple: (WORD,)",
            )
        given = [*words]
        for name in presets:
            given += cls.preset(name).words
        return cls(tuple(dict.fromkeys(given)), tuple(dict.fromkeys(deny)))

    @classmethod
    def preset(cls, name: str) -> Rules:
        """The rules of a preset; `EgressError` if there is none of this name."""
        from podbot.egress.presets import NOT_BY_NAME, PRESETS

        if name in PRESETS:
            return cls(PRESETS[name])
        remedy = NOT_BY_NAME.get(name) or f"there are {', '.join(PRESETS)}"
        raise EgressError(f"there is no preset {name!r}", kind=Kind.BAD_RULE, remedy=remedy)

    def allow(self, word: str) -> Rules:
        """The same, and one more word that allows."""
        return Rules(tuple(dict.fromkeys((*self.words, word))), self.denied, self.unasked)

    def deny(self, word: str) -> Rules:
        """The same, and one more word that denies."""
        return Rules(self.words, tuple(dict.fromkeys((*self.denied, word))), self.unasked)

    def sparing(self, *unasked: str) -> Rules:
        """The same, and these hosts only where they are named themselves."""
        return Rules(self.words, self.denied, tuple(dict.fromkeys((*self.unasked, *unasked))))

    def judge(
        self, host: str, port: int, method: str = "CONNECT", path: str | None = None
    ) -> Judgement:
        """What the words say of a host, or of a request to it. Its addresses are another question.

        The host may be in any spelling; one that has several readings is refused.
        """
        try:
            host = host_of(host)
        except OddHostError as error:
            return Judgement(False, reason=str(error))
        place = shown(host, port)
        denied = self._denying(host, port, method, path)
        if denied is not None:
            return Judgement(False, denied, f"{place} is denied")
        unasked = self._unasked(host, port)
        if unasked is not None:
            reason = f"{place} is denied unless it is named itself: nobody asked for it"
            return Judgement(False, unasked, reason, _naming(host, port))
        allowed = self._allowing(host, port, method, path)
        if allowed is not None:
            return Judgement(True, allowed)
        plain = next((r for r in self._rules(False) if r.is_about(host, port)), None)
        if plain is not None:
            asked = f"{method} {path}" if path is not None else "a tunnel"
            reason = f"{place} is allowed for some requests of plain HTTP only, not for {asked}"
            return Judgement(False, plain.word, reason, _naming(host, port))
        reason = f"{place} is not on the allowlist"
        if not is_address(host):
            return Judgement(False, reason=reason, would_allow=_naming(host, port))
        near = self.judge_address(host, port)
        if not near.allowed:
            return Judgement(False, reason=f"{reason}: {near.reason}", would_allow=near.would_allow)
        reason += ", and an address is allowed only if it is named itself"
        return Judgement(False, reason=reason, would_allow=_naming(host, port))

    def judge_address(self, address: str, port: int) -> Judgement:
        """Whether an address may be dialled, given that a name which is allowed resolves to it.

        One of the Internet may, unless it is denied; any other must be named itself.
        """
        from podbot.egress._addresses import NEVER, kind_of

        address = address.partition("%")[0]
        denied = self._denying(address, port, "CONNECT", None)
        if denied is not None:
            return Judgement(False, denied, f"{shown(address, port)} is denied")
        named = self._allowing(address, port, "CONNECT", None)
        kind = kind_of(address)
        if named is not None or kind is None:
            return Judgement(True, named)
        can_be_named = kind not in NEVER and "disguise" not in kind
        return Judgement(
            False,
            reason=f"{address} is {kind}",
            would_allow=_naming(address, port) if can_be_named else None,
        )

    def _rules(self, denying: bool) -> Iterable[Rule]:
        return [_rule(word, denying) for word in (self.denied if denying else self.words)]

    def _unasked(self, host: str, port: int) -> str | None:
        """The word about a host that is not to be contacted, unless one names it."""
        found = [r for r in map(_denying, self.unasked) if r.is_about(host, port)]
        if not found:
            return None
        named = [r for r in self._rules(False) if r.is_about(host, port)]
        return next((q.word for q in found if not any(r.is_within(q) for r in named)), None)

    def _allowing(self, host: str, port: int, method: str, path: str | None) -> str | None:
        rules = (r for r in self._rules(False) if r.is_about(host, port))
        return next((r.word for r in rules if r.allows(method, path)), None)

    def _denying(self, host: str, port: int, method: str, path: str | None) -> str | None:
        rules = (r for r in self._rules(True) if r.is_about(host, port))
        return next((r.word for r in rules if r.denies(method, path)), None)


def _denying(word: str) -> Rule:
    return _rule(word, True)


@lru_cache(maxsize=4096)
def _rule(word: str, denying: bool) -> Rule:
    match = _WORD.fullmatch(word)
    if match is None:
        raise _bad(word, "it is not [METHOD,… ]HOST[:PORT][/PATH]", _advice(word))
    try:
        host = host_of(in_ascii(match["host"]))
    except OddHostError as error:
        raise _bad(word, str(error)) from None
    port, path = match["port"], match["path"] or ""
    if port not in (None, "*") and not 0 < int(port) < 65536:
        raise _bad(word, "there is no such port")
    ports: tuple[int, ...] = () if port == "*" or denying else USUAL_PORTS
    if port not in (None, "*"):
        ports = (int(port),)
    if is_address(host):
        _check_address(word, host, match["below"] is not None, path, denying)
    if host == "localhost" or (host == HOST_NAME and not denying and port in (None, "*")):
        raise _bad(word, "ports of this machine are named one by one", f"{HOST_NAME}:PORT")
    if path and not is_straight(path):
        raise _bad(word, "its path has . or .. or an escaped / in it", "write the path plainly")
    methods = tuple(match["methods"].split(",")) if match["methods"] else ()
    if set(methods) & {*TUNNELS, "SOCKS"}:
        raise _bad(word, "a tunnel has no method", "leave the method out")
    return Rule(word, host, match["below"] is not None, ports, methods, path)


def _check_address(word: str, address: str, below: bool, path: str, denying: bool) -> None:
    """Refuse words about addresses that say less, or more, than they seem to."""
    from podbot.egress._addresses import NEVER, kind_of

    if below:
        raise _bad(word, "nothing is below an address")
    if re.fullmatch(r"/[0-9]{1,3}", path):
        raise _bad(word, "a range of addresses is no rule", "name each address")
    kind = kind_of(address)
    if kind is None or denying:
        return
    if kind == "a loopback address":
        raise _bad(word, "ports of this machine are named one by one", f"{HOST_NAME}:PORT")
    if kind in NEVER or "disguise" in kind:
        raise _bad(word, f"{address} is {kind}")


def _naming(host: str, port: int) -> str:
    """The word that allows a host and port."""
    if port in USUAL_PORTS and host != HOST_NAME:
        return f"[{host}]" if ":" in host else host
    return shown(host, port)


def _is_below(path: str, prefix: str) -> bool:
    """Whether a path is that of a prefix or below it."""
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def is_straight(path: str) -> bool:
    """Whether a path has one reading: servers take escapes apart once, or twice, or never."""
    from urllib.parse import unquote

    if re.search(r"%2f|%5c|%00|\\", path, re.I) or "//" in path:
        return False
    for _ in range(4):
        if any(part.partition(";")[0] in (".", "..") for part in path.split("/")):
            return False
        further = unquote(path)
        if further == path:
            return True
        if further.count("/") != path.count("/") or "\\" in further or "\0" in further:
            return False
        path = further
    return False


def _advice(word: str) -> str | None:
    scheme, found, rest = word.partition("://")
    host = re.split(r"[/?#]", rest)[0].rpartition("@")[2]
    if found and host:
        port = {"http": ":80", "https": ":443"}.get(scheme, "") if ":" not in host else ""
        return f"a host is named, not a URL: {host}{port}"
    if word.strip() == "*":
        return 'hosts are named one by one; network "host" gives all of it'
    if word.startswith("*") or "*" in word:
        return "a star stands first, for names below another: *.example.org"
    return None


def _bad(word: str, why: str, remedy: str | None = None) -> EgressError:
    return EgressError(f"the rule {word!r} cannot be: {why}", kind=Kind.BAD_RULE, remedy=remedy)
