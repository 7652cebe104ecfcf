"""What kind of address is it: one of the Internet's, or one that means something nearer?

Only the first may be dialled because a name was allowed. A list of what is public, as far as there
is one, is safer than a list of what is not: of IPv6 one eighth is given out at all.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

# RFC 6890 and its heirs; what is nearest is named first.
_KINDS_4 = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("169.254.169.254/32", "a metadata address"),
        ("100.100.100.200/32", "a metadata address"),
        ("168.63.129.16/32", "a metadata address"),  # public by its number, yet the machine's own
        ("192.0.0.192/32", "a metadata address"),
        ("127.0.0.0/8", "a loopback address"),
        ("0.0.0.0/8", "an address of this machine"),
        ("10.0.0.0/8", "a private address"),
        ("172.16.0.0/12", "a private address"),
        ("192.168.0.0/16", "a private address"),
        ("169.254.0.0/16", "a link-local address"),
        ("100.64.0.0/10", "an address of a carrier's NAT"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "a reserved address"),
        ("192.88.99.0/24", "a reserved address"),
        ("198.18.0.0/15", "a reserved address"),
        ("198.51.100.0/24", "a reserved address"),
        ("203.0.113.0/24", "a reserved address"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)
_KINDS_6 = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("fd00:ec2::254/128", "a metadata address"),
        ("fd20:ce::254/128", "a metadata address"),
        ("::1/128", "a loopback address"),
        ("::/128", "an address of this machine"),
        ("::ffff:0:0/96", "an IPv4 address in disguise"),
        ("::/96", "an IPv4 address in disguise"),
        ("64:ff9b:1::/48", "an IPv4 address in disguise"),
        ("2001::/32", "an IPv4 address in disguise"),  # Teredo
        ("2002::/16", "an IPv4 address in disguise"),  # 6to4
        ("fe80::/10", "a link-local address"),
        ("fc00::/7", "a private address"),
        ("ff00::/8", "a multicast address"),
        ("2001::/23", "a reserved address"),
        ("2001:db8::/32", "a reserved address"),
        ("3fff::/20", "a reserved address"),
    )
)
_GIVEN_OUT = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")

NEVER = ("a loopback address", "an address of this machine", "a multicast address")
"""Kinds that no word can name."""


def kind_of(text: str) -> str | None:
    """What keeps an address from being dialled, in words; none if it is the Internet's."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv4Address):
        return _first(_KINDS_4, address)
    if address in _NAT64:  # how a network that has IPv6 only reaches the rest
        return _first(_KINDS_4, IPv4Address(int(address) & 0xFFFFFFFF))
    found = _first(_KINDS_6, address)
    return found or (None if address in _GIVEN_OUT else "a reserved address")


def _first(
    kinds: tuple[tuple[IPv4Network, str], ...] | tuple[tuple[IPv6Network, str], ...],
    address: IPv4Address | IPv6Address,
) -> str | None:
    return next((kind for network, kind in kinds if address in network), None)
