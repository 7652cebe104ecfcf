"""Whether something in a sandbox without a network tried to reach one.

Its network namespace counts what found no way out, from its start on. A loopback address is always
there: a resolver that listens on one is missed as a datagram that nobody took.
"""

from __future__ import annotations

from podbot.errors import PodbotError
from podbot.sandbox.sandbox import Sandbox

_NO_WAY = {("Ip", "OutNoRoutes"), ("Udp", "NoPorts")}
_NO_WAY_6 = {"Ip6OutNoRoutes", "Udp6NoPorts"}


def missed(sandbox: Sandbox) -> bool:
    """Whether the counters tell of an attempt; False where they cannot be read."""
    try:
        return _missed(sandbox.read("/proc/net/snmp")) or _missed_6(sandbox.read("/proc/net/snmp6"))
    except (PodbotError, ValueError):
        return False  # a kernel without them, or the sandbox is gone: then nothing is said


def _missed(table: bytes) -> bool:
    """Two lines for each protocol: the names of the counters, and the counts."""
    lines = table.decode("ascii").splitlines()
    for names, counts in zip(lines[::2], lines[1::2], strict=True):
        protocol, *rest = names.split()
        for name, count in zip(rest, counts.split()[1:], strict=True):
            if (protocol.rstrip(":"), name) in _NO_WAY and int(count):
                return True
    return False


def _missed_6(table: bytes) -> bool:
    """A line for each counter."""
    pairs = (line.split() for line in table.decode("ascii").splitlines())
    return any(name in _NO_WAY_6 and int(count) for name, count in pairs)
