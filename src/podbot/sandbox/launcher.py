"""The seam between *where* a sandbox runs and *what* it can do.

A backend is a `Launcher`: it starts a guest somewhere and hands back a connected socket (or, for
a backend without processes, a channel of its own), what it enforces, and how to end it. A third
party registers its class under the entry point group ``podbot.sandbox``; the conformance suite in
``podbot.testing`` then says whether it keeps the contract. Where a Python can be started and talked
to over a stream of bytes, `podbot.sandbox.over_stream` does the rest.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from podbot.frozen import dataclass, field
from podbot.sandbox.channel import Channel
from podbot.sandbox.limits import Limits
from podbot.sandbox.policy import Policy
from podbot.sandbox.values import Guarantee

if TYPE_CHECKING:
    from podbot.errors import SandboxError
    from podbot.sandbox.async_sandbox import AsyncSandbox
    from podbot.sandbox.gateway import Gateway
    from podbot.sandbox.layers import Layer
    from podbot.sandbox.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Launched:
    """A guest that runs.

    ``workdir``: the working folder, as the guest sees it. ``guarantees``: what is enforced here,
    and by what; what is not must be said too. ``end()`` kills everything of the sandbox and waits
    for it; it may be called twice, from any thread, after the connection was closed.

    ``connection``: a connected stream socket to the guest. ``descriptors`` is false for one that
    does not lead to the guest itself: then none can be passed along. A backend that brings its own
    channel instead leaves ``config`` empty.

    ``config`` is the guest's first request: ``workdir``; ``env``, what commands start with;
    ``root``, where the file verbs stay ("/": nowhere); ``inherit``, whether the guest's own
    variables count too; ``python``, the interpreter of the kernel; ``rg``, where it is;
    ``rlimits``, by their names; ``subreaper``, whether orphans come to a guest that is not process
    1; ``numbers_after``, below which no process of this sandbox gets its number. All but the first
    two may be left out.

    ``died()`` may know why a guest that hung up did so. ``notes`` are for people. ``layer`` is
    where the changes are, for a backend that keeps them apart. ``gateway`` is what its network goes
    through, if the policy names hosts; ``end`` closes it.
    """

    workdir: str
    guarantees: tuple[Guarantee, ...]
    end: Callable[[], None]
    connection: socket.socket | Channel
    config: dict[str, object] = field(default_factory=dict)
    died: Callable[[], SandboxError | None] = lambda: None
    notes: tuple[str, ...] = ()
    layer: Layer | None = None
    descriptors: bool = True
    gateway: Gateway | None = None


class Launcher(ABC):
    """Starts one sandbox: what a backend is.

    `podbot.sandbox.open` makes one with the caller's options as keyword arguments, all of them
    optional; every backend takes ``policy`` and ``limits``. Making one starts nothing.
    """

    name: str
    """What `open` calls this backend."""
    options: ClassVar[tuple[str, ...] | None] = None
    """The names of the options; None if they are those of ``__init__``."""
    limits: Limits
    """What was asked for. `Sandbox` uses ``output`` and ``wall_time`` itself; the rest is up to
    the backend, which says in its guarantees what became of it."""
    policy: Policy
    """What was asked for, likewise."""

    @abstractmethod
    def launch(self) -> Launched:
        """Start the guest; blocks until it runs.

        Raises `LaunchError` with a remedy, and leaves nothing behind then. Called once for a
        sandbox; a backend whose sandboxes start anew may bear more.
        """

    def sandbox(self) -> Sandbox:
        """A sandbox of this launcher, open. One whose sandboxes can do more gives its own class.

        Raises `LaunchError`.
        """
        from podbot.sandbox.sandbox import Sandbox

        return Sandbox(self)

    def async_sandbox(self) -> AsyncSandbox:
        """Its async twin, not started yet."""
        from podbot.sandbox.async_sandbox import AsyncSandbox

        return AsyncSandbox(self)
