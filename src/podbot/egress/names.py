"""The one spelling of a host: whatever a program writes is brought to it once, or refused.

A name is lower case, without a dot at its end, in ASCII; an address is as `ipaddress` prints it.
What resolvers read in more than one way (octal, hex, a single number, a part left out) is no
address here and no name either. Nothing here looks anything up.
"""

from __future__ import annotations

import re

HOST_NAME = "host.podbot.internal"
"""The name by which a sandbox calls the host's loopback. No resolver is ever asked for it."""

_NAME = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MOST = 253


class OddHostError(ValueError):
    """A host that has no one spelling; the text says why, and never what it was."""


def host_of(text: str) -> str:
    """The one spelling of a host that a program wrote; `OddHostError` if it has none."""
    if text.startswith("[") or ":" in text:
        return _address_6(text)
    if not text.isascii():
        raise OddHostError("the host is not in ASCII: international names are written xn--…")
    name = text.lower().removesuffix(".")
    if len(name) > _MOST or _NAME.fullmatch(name) is None:
        raise OddHostError("the host has characters, or a length, that no name has")
    if _NUMBER.fullmatch(name.rpartition(".")[2]) is None:
        return name
    return _address_4(name)


def is_address(host: str) -> bool:
    """Whether a host in its one spelling is an address, not a name."""
    return ":" in host or host.rpartition(".")[2].isdecimal()


def shown(host: str, port: int) -> str:
    """Host and port as one word."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def in_ascii(name: str) -> str:
    """An international name in its ASCII form; others as they are.

    The codec is that of IDNA 2003, which makes some letters others (ß becomes ss), and that may be
    somebody else's name. So only what comes back unchanged is taken.
    """
    if name.isascii():
        return name
    try:
        made = name.lower().encode("idna").decode("ascii")
        back = made.encode("ascii").decode("idna")
    except UnicodeError:
        made = back = ""
    if not made or back != name.lower():
        raise OddHostError("this name has letters with more than one reading: write it as xn--…")
    return made


def _address_4(text: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise OddHostError("an address in an odd spelling: four decimal numbers, please") from None


def _address_6(text: str) -> str:
    import ipaddress

    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in inner:
        raise OddHostError("an address with a zone")
    try:
        return str(ipaddress.IPv6Address(inner))
    except ValueError:
        raise OddHostError("an address in an odd spelling") from None
