"""Starting the zygote, perhaps before it is known what for.

An interpreter takes its time to start. A program whose only task is to run something can have
the zygote begin while it loads everything else; `owner` takes it over then. For that reason this
imports next to nothing: the plain `signal` and `socket` bring a quarter of the standard library.
"""

from __future__ import annotations

import os
from _socket import AF_UNIX, SOCK_SEQPACKET, socketpair

from podbot.sandbox import interpreter

LINE = 3
"""The descriptor the zygote finds its control socket at; it closes all behind it."""

IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ

_begun: tuple[int, int, int] | None = None


def begin() -> None:
    """Start one for whoever asks first in this process; why it cannot be is said to that one."""
    global _begun  # noqa: PLW0603 - one a process
    if _begun is None:
        try:  # noqa: SIM105 - contextlib would be the largest import here
            _begun = (os.getpid(), *start())
        except OSError:
            pass


def take() -> tuple[int, int] | None:
    """The one that was begun, if it was and is still to be had: its pid and the line to it."""
    global _begun
    begun, _begun = _begun, None
    if begun is None or begun[0] != os.getpid():
        return None
    return begun[1:]


def start() -> tuple[int, int]:
    """Start one; gives its pid and the line to it."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    command = interpreter.command("podbot.sandbox.overlay._zygote", str(LINE), str(os.getpid()))
    try:
        # Not subprocess: importing it takes longer than all of this.
        pid = os.posix_spawn(
            command[0],
            command,
            interpreter.environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), LINE),
            ],
            setsid=True,  # Ctrl-C at a terminal is for the host to handle
            setsigdef=IGNORED_BY_PYTHON,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return pid, ours.detach()
