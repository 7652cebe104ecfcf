"""The system-call filter every overlay sandbox runs under, as a BPF program.

What is refused is in `podbot.system_calls`, and fails with EPERM or what the table says. A call of
another architecture kills the process.
"""

from __future__ import annotations

import errno
import struct

from podbot.kernel import MACHINE
from podbot.system_calls import (
    ABSENT,
    JUDGED,
    MACHINES,
    NEWEST,
    REFUSED,
    WHOLE,
    AnyOf,
    OneOf,
    Rule,
)

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_SETRLIMIT, _PRLIMIT = (160, 164), (302, 261)
_RLIMIT_CORE = 4

_KILL = 0x80000000
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_LD, _AND, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ARGUMENTS = 16  # eight bytes each; the low half is the first (both machines are little-endian)


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("HBBI", code, jt, jf, k)


def _deny(number: int = errno.EPERM) -> bytes:
    return _op(_RET, _ERRNO | number)


def _load(argument: int) -> bytes:
    return _op(_LD, _ARGUMENTS + 8 * argument)


def program(machine: str = MACHINE) -> bytes:
    """The filter for a machine, as the kernel takes it."""
    column = MACHINES.index(machine)
    parts = [
        _op(_LD, 4),
        _op(_JEQ, AUDIT_ARCH[machine], 1, 0),
        _op(_RET, _KILL),
        _op(_LD, 0),
    ]
    # The x32 calls too, which share the architecture of x86_64 and carry bit 30.
    parts += [_op(_JGE, NEWEST + 1, 0, 1), _deny(errno.ENOSYS)]
    for numbers in ABSENT.values():
        if (number := numbers[column]) is not None:
            parts += [_op(_JEQ, number, 0, 1), _deny(errno.ENOSYS)]
    for numbers, rule in JUDGED.values():
        if (number := numbers[column]) is not None:
            parts += _when(number, _judge(rule))
    # The limit on core dumps stays at 1 (see `_setup.py`); whoever sets it is told that it worked.
    worked = _op(_RET, _ERRNO)
    parts += _when(_SETRLIMIT[column], [_load(0), _op(_JEQ, _RLIMIT_CORE, 0, 1), worked])
    parts += _when(
        _PRLIMIT[column],
        [
            _load(1), _op(_JEQ, _RLIMIT_CORE, 0, 5), _load(2), _op(_JEQ, 0, 0, 2),
            _op(_LD, _ARGUMENTS + 8 * 2 + 4), _op(_JEQ, 0, 1, 0), worked,
        ],
    )  # fmt: skip
    # One comparison for each denied call, all jumping to the last instruction.
    refused = sorted(number for pair in REFUSED.values() if (number := pair[column]) is not None)
    for at, number in enumerate(refused):
        parts.append(_op(_JEQ, number, len(refused) - at, 0))
    parts += [_op(_RET, _ALLOW), _deny()]
    return b"".join(parts)


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """The body only for one call; the number stays loaded for those after it."""
    return [_op(_JEQ, number, 0, len(body) + 1), *body, _op(_RET, _ALLOW)]


def _judge(rule: Rule) -> list[bytes]:
    """Refuse what a rule refuses, and fall out at the end with what it does not."""
    if isinstance(rule, AnyOf):
        return [_load(rule.argument), _op(_JSET, rule.bits, 0, 1), _deny(rule.errno)]
    if isinstance(rule, OneOf):
        body = [_load(rule.argument)]
        for value in rule.values:
            body += [_op(_JEQ, value, 0, 1), _deny(rule.errno)]
        return body
    body = []
    for way in rule.ways:
        fits = [_op(_RET, _ALLOW)]
        # From the last condition to the first: each must know how far it is to the next way.
        for argument, mask, value in reversed(way):
            masked = [] if mask == WHOLE else [_op(_AND, mask)]
            fits = [_load(argument), *masked, _op(_JEQ, value, 0, len(fits)), *fits]
        body += fits
    return [*body, _deny(rule.errno)]
