"""Commands that a container's runtime did not start: recognised, and told in plain words.

Engines put what the runtime said into the command's own output, and end it with a status that a
command could have had too. Such output is held back until the status is known. What is held is
judged, never shown as if the command had said it, and names are taken from what was asked for:
whoever imitates a runtime gains a wrong message about itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from podbot.engine.http import replies
from podbot.errors import ContainerError, Kind

if TYPE_CHECKING:
    from podbot.engine.execs import ExecSpec

STATUSES = (125, 126, 127)
"""What engines give as the exit status of a command that was not started."""
HELD = 8 * 1024

# Podman names the runtime, whatever it is called, and says in the end what it makes of it.
_BEGINS = re.compile(
    rb"OCI runtime exec failed: |unable to find (?:user|group) |Error: \S+: [^\n]*: OCI "
)
_A_PROGRAM = re.compile("executable file|attempted to invoke|exec: ")
_OPENED = "open executable: "  # as crun begins, and then it names nothing
_FOLDER = re.compile("chdir|working directory|cwd must", re.IGNORECASE)
_USER = re.compile("unable to find (user|group)")
_MISSING = re.compile("not found|no such file", re.IGNORECASE)
_FORBIDDEN = re.compile("permission denied|is a directory|exec format error", re.IGNORECASE)

Taken = Callable[[int, bytes], object]


class Held:
    """Output on its way to ``take``: what begins as a refusal does waits until it is asked for.

    An engine sends it in one piece, so the first piece decides.
    """

    def __init__(self, take: Taken, spec: ExecSpec):
        self._take, self._spec = take, spec
        self._begun = self._holding = False
        self._held: list[tuple[int, bytes]] = []

    def take(self, stream: int, data: bytes) -> None:
        """Pass it on, or hold it."""
        if not self._begun:
            self._begun, self._holding = True, is_refusal(data, self._spec)
        if not self._holding:
            self._take(stream, data)
            return
        self._held.append((stream, data))
        if sum(len(part) for _, part in self._held) > HELD:
            self.release()

    def release(self) -> None:
        """It was the command's own: pass it on."""
        self._holding = False
        held, self._held = self._held, []
        for stream, data in held:
            self._take(stream, data)

    def refusal(self, status: int) -> str | None:
        """What the runtime said, if it refused and that is the status of it."""
        if not self._holding or status not in STATUSES:
            return None
        return b"".join(data for _, data in self._held).decode("utf-8", "replace")


def is_refusal(said: bytes, spec: ExecSpec) -> bool:
    """Whether this is how an engine tells that this command was not started.

    A command may run containers itself, and pass on what an engine of its own said of another one.
    """
    line = said.decode("utf-8", "replace")
    about_another = _A_PROGRAM.search(line) and not (
        _names(line, spec.argv[0]) or (spec.workdir and _names(line, spec.workdir))
    )
    return _BEGINS.match(said) is not None and not about_another


def error(said: str, container: str, spec: ExecSpec) -> ContainerError:
    """The error for a command that was not started, by what the runtime said.

    Kinds ``command_not_found``, ``command_not_executable``, ``bad_cwd`` and ``exec_failed``.
    """
    line = said.strip().partition("\n")[0]
    command = replies.visible(spec.argv[0])
    other = line.replace(spec.argv[0], "")  # a command may be called chdir
    if spec.workdir is not None and _names(line, spec.workdir) and _FOLDER.search(other):
        return _bad_folder(line, container, spec.workdir)
    if _USER.search(line):
        user = replies.visible(spec.user or "")
        return _made(
            Kind.EXEC_FAILED,
            f"container {container} has no user or group {user}",
            "give numbers, as in --user 1000:1000, or a name that its /etc/passwd has",
        )
    named = _names(line, spec.argv[0]) or _OPENED in line
    if named and _MISSING.search(line):
        return _made(
            Kind.COMMAND_NOT_FOUND,
            f"there is no command {command} in container {container}",
            "check its name and the container's PATH; `sh -c` runs what a shell understands",
        )
    if named and _FORBIDDEN.search(line):
        return _made(
            Kind.COMMAND_NOT_EXECUTABLE,
            f"{command} cannot be executed in container {container}",
            "it must be a program, with a mode that lets that user execute it",
        )
    return _made(
        Kind.EXEC_FAILED,
        f"{command} could not be started in container {container}: {replies.visible(line)}",
        "look at the container's state with `podbot ps`",
    )


def retold(problem: ContainerError, container: str, spec: ExecSpec) -> ContainerError:
    """The same for an engine that refused the call and told why; any other problem as it is."""
    _, _, said = problem.message.partition(": ")
    if problem.kind is not Kind.EXEC_FAILED or not is_refusal(
        said.encode("utf-8", "replace"), spec
    ):
        return problem
    return error(said, container, spec)


def _names(line: str, thing: str) -> bool:
    """Whether a runtime speaks of this thing: it puts names into quotes of some kind."""
    return any(f"{quote}{thing}{quote}" in line for quote in "\"'`")


def _bad_folder(line: str, container: str, workdir: str) -> ContainerError:
    folder = replies.visible(workdir)
    if "not a directory" in line.lower():
        what = f"{folder} is not a folder in container {container}"
    elif "permission denied" in line.lower():
        what = f"{folder} may not be entered in container {container}"
    else:
        what = f"there is no folder {folder} in container {container}"
    remedy = "start in a folder that it has: `podbot exec NAME -- ls /` shows some"
    return _made(Kind.BAD_CWD, what, remedy)


def _made(kind: Kind, message: str, remedy: str) -> ContainerError:
    return ContainerError(message, kind=kind, remedy=remedy)
