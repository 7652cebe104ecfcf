"""The local backend: the guest as a plain child process. **It isolates nothing.**

For hosts that are themselves a sandbox (a container, a CI job). Commands run as the calling user
with all that user may do; only the file verbs stay below the working folder. What it does keep:
a short environment, per-process rlimits, and that nothing it started outlives it.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from podbot.errors import Kind, LaunchError
from podbot.sandbox import _local_guests, interpreter
from podbot.sandbox.folders import existing_folder
from podbot.sandbox.guest.trees import remove_tree
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.limits import Limits, kept_by_guest
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.sandbox.values import Guarantee

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox._local_guests import LocalGuest

SANDBOX_VARIABLE = "PODBOT_SANDBOX"
END_SECONDS = 5.0
KILL_ROUNDS = 1000


class LocalLauncher(Launcher):
    """Starts a local sandbox in ``target``, or in a new temporary folder that goes with it."""

    name = "local"

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ):
        self.target = target
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        if self.policy.routes:
            from podbot.sandbox import _brokered

            _brokered.refuse(self.policy.routes, self.name)

    def launch(self) -> Launched:
        """Start the guest."""
        scratch: str | None = None
        if self.target is None:
            scratch = tempfile.mkdtemp(prefix="podbot-local-")
            workdir = Path(scratch) / "workspace"
            workdir.mkdir(mode=0o700)
        else:
            workdir = existing_folder(self.target)
        ours, theirs = socket.socketpair()
        try:
            guest = _local_guests.start(theirs.fileno())
        except BaseException as error:
            ours.close()
            if scratch is not None:
                _remove(scratch)
            if not isinstance(error, OSError):
                raise  # Ctrl-C
            raise LaunchError(
                f"the local guest did not start: {error}", kind=Kind.LAUNCH_FAILED
            ) from error
        finally:
            theirs.close()
        token = secrets.token_hex(8)
        running = _Running(guest, token, scratch)
        home = Path.home()
        return Launched(
            workdir=str(workdir),
            guarantees=_guarantees(self.limits),
            end=running.end,
            connection=ours,
            config={
                "workdir": str(workdir),
                "root": str(workdir),
                "env": self.policy.environment_inside(home) | {SANDBOX_VARIABLE: token},
                "python": self.policy.python,
                "rg": interpreter.ripgrep(),
                "rlimits": rlimits(self.limits),
                "subreaper": True,
            },
        )


class _Running:
    """A live local guest, and how to end it."""

    def __init__(self, guest: LocalGuest, token: str, scratch: str | None):
        self._guest = guest
        self._token = token
        self._scratch = scratch
        self._ended = False

    def end(self) -> None:
        """The guest kills all it started when it sees its line closed; see that it did."""
        if self._ended:
            return
        self._ended = True
        clean = self._guest.wait(END_SECONDS)
        if clean is None:
            self._guest.kill()
        self._guest.let_go()
        if not clean:
            kill_marked(self._token)
        if self._scratch is not None:
            _remove(self._scratch)


def _remove(scratch: str) -> None:
    """Remove a temporary workspace, whatever was made in it."""
    folder = os.open(os.path.dirname(scratch), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # what cannot be removed is left to whoever cleans /tmp
            remove_tree(folder, os.path.basename(scratch))
    finally:
        os.close(folder)


def kill_marked(token: str) -> None:
    """Kill what a dead guest left behind, found by the mark in its environment, and wait for it."""
    mark = f"{SANDBOX_VARIABLE}={token}".encode()
    for _ in range(KILL_ROUNDS):
        found = [pid for pid in _pids() if mark in _environment(pid)]
        if not found:
            return
        for pid in found:
            with suppress(OSError):  # gone meanwhile
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """What a process was started with; nothing for another user's, or one that is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def rlimits(limits: Limits) -> dict[str, int]:
    """The limits a process can carry by itself. Not pids: that one counts all of a user's."""
    found: dict[str, int] = {}
    if limits.memory is not None:
        found["RLIMIT_DATA"] = limits.memory
    if limits.file_size is not None:
        found["RLIMIT_FSIZE"] = limits.file_size
    return found


def _guarantees(limits: Limits) -> tuple[Guarantee, ...]:
    host = "nothing: commands run as you, on the host"
    found = [
        Guarantee("files", False, host + "; only the file verbs stay below the working folder"),
        Guarantee("network", False, "nothing: commands use the host's network"),
        Guarantee("processes", False, "nothing: commands see and may signal your processes"),
        Guarantee("secrets", False, "nothing: commands read what you can read"),
        Guarantee("environment", True, "commands start with a short allowlist of variables"),
        Guarantee("no_leftovers", True, "all it started is killed at close (subreaper, marks)"),
        Guarantee("limit.output", True, "the guest cuts what it keeps"),
    ]
    if limits.memory is not None:
        found.append(Guarantee("limit.memory", False, "rlimit on data, per process"))
    found += kept_by_guest(limits)
    for name, value in (("cpu", limits.cpu), ("pids", limits.pids), ("disk", limits.disk)):
        if value is not None:
            found.append(Guarantee(f"limit.{name}", False, "not available on this backend"))
    return tuple(found)


class LocalSandbox(Sandbox):
    """A sandbox of the local backend: **no isolation**, see the module."""

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ):
        super().__init__(LocalLauncher(target, policy=policy, limits=limits))
