"""What network a sandbox has: `Network`. The only module that knows the words for it.

    Policy(network=Network.none)     # loopback only; the default
    Policy(network="host")           # the plain word means the same, wherever a network is wanted

A network **is** its word, a string: records, JSON and command lines hold it as it stands, and it
equals the plain word. Code of podbot's compares no words, it asks: `separate`, `reaches_out`,
`described`. So a further kind, such as a list of hosts, is added here and nowhere else.
"""

from __future__ import annotations

from podbot.errors import Kind, SandboxError

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar, Literal

    Word = Literal["none", "host"]


class Network(str):
    """The network of a sandbox, made of its word: ``Network("none")`` is `Network.none`.

    - `Network.none`: loopback only, and of the sandbox's own.
    - `Network.host`: the network of this machine as it is, its loopback included.

    Raises `SandboxError` (kind ``invalid``) for any other word.
    """

    __slots__ = ()

    WORDS: ClassVar[tuple[str, ...]] = ("none", "host")
    """The words, the default first."""

    none: ClassVar[Network]
    host: ClassVar[Network]

    def __new__(cls, word: str) -> Network:
        """The network that this word means."""
        if word not in cls.WORDS:
            raise SandboxError(
                f"network={word!r} is not known",
                kind=Kind.INVALID,
                remedy='use "none" (loopback only) or "host"',
            )
        # Each is one object, for those who ask with `is`.
        made: Network | None = Network.__dict__.get(word)
        return super().__new__(cls, word) if made is None else made

    @property
    def separate(self) -> bool:
        """Whether the sandbox has a network namespace of its own."""
        return self != Network.host

    @property
    def reaches_out(self) -> bool:
        """Whether anything beyond the sandbox can be reached, this machine's services included."""
        return self != Network.none

    @property
    def described(self) -> str:
        """What commands have, to put into a sentence."""
        return _DESCRIBED[str(self)]

    def __repr__(self) -> str:
        return f"Network.{self}"

    if TYPE_CHECKING:
        # A field of this type may be given as the plain word. Its class makes a `Network` of it
        # in `__post_init__`; type checkers learn it from these two, which do not exist.
        def __get__(self, instance: object, owner: object = None) -> Network: ...
        def __set__(self, instance: object, value: Network | Word) -> None: ...


_DESCRIBED: Mapping[str, str] = {"none": "no network", "host": "the network of this machine"}

Network.none, Network.host = map(Network, Network.WORDS)
