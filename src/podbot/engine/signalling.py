"""Signals to a command in a container: engines have no call for that.

So the command is started with a variable that nobody else has, and found by it: in the /proc of
this machine if it runs here and we may signal it (root, or the user of a rootless engine), else by
a shell that runs in the container for a moment, which takes `sh` and `grep` there. The process that
the engine started leads a group, which is what gets a signal. A command that wiped its environment
is not found, nor are those of its children that did.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from podbot.engine.execs import ExecSpec
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass, replace

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

VARIABLE = "PODBOT_JOB"
"""The guest of a sandbox counts its jobs by it, and leaves alone whoever has another number."""

SECONDS = 20.0
"""How long the shell in the container may take."""
ROUNDS = 10
"""How often to look for what was started while the rest was killed."""
_MOST = 1 << 20
_STATE, _GROUP, _BEGAN = 0, 2, 19
"""Where these stand in /proc/PID/stat, after the name."""

# $1: what to look for, $2: the number of the signal, $3: all or group.
_SHELL = """
command -v grep >/dev/null || exit 3
some=
for each in $(grep -lsF -e "$1" /proc/[0-9]*/environ); do
    each=${each#/proc/} each=${each%/environ}
    { read -r line < "/proc/$each/stat"; } 2>/dev/null || continue
    if [ "$3" = all ]; then
        kill "-$2" "$each" 2>/dev/null && some=$each
        continue
    fi
    set -- "$1" "$2" "$3" ${line##*) }
    if [ "$5" = 0 ]; then
        kill "-$2" "-$6" 2>/dev/null || kill "-$2" "$each" && some=$each
    fi
done
[ "$some" ] || exit 4
"""
_NO_GREP, _NOT_FOUND = 3, 4


@dataclass(frozen=True, slots=True)
class _Process:
    began: int
    pid: int
    group: int


def marked(spec: ExecSpec) -> ExecSpec:
    """The same command, with a mark by which `send` finds it."""
    mark = str(secrets.randbelow(9 * 10**17) + 10**17)
    return replace(spec, env={**spec.env, VARIABLE: mark})


def send(engine: Engine, container: str, spec: ExecSpec, number: int, *, whole: bool) -> bool:
    """See `Execs.signal`."""
    mark = f"{VARIABLE}={spec.env[VARIABLE]}"
    if engine.facts.local and _here(mark.encode(), number, whole):
        return True
    return _inside(engine, container, spec, mark, number, whole)


def _here(mark: bytes, number: int, whole: bool) -> bool:
    """Through the kernel, if it runs on this machine."""
    sent = False
    try:
        if not whole:
            leaders = [each for each in _family(mark) if each.group == each.pid]
            if leaders:
                os.killpg(min(leaders, key=lambda each: (each.began, each.pid)).group, number)
            return bool(leaders)
        for _ in range(ROUNDS):
            family = _family(mark)
            if not family:
                break
            for each in family:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, number)
                    sent = True
    except (PermissionError, ProcessLookupError):
        pass
    return sent


def _family(mark: bytes) -> list[_Process]:
    """The processes of this machine that have the mark, as far as we may look."""
    wanted = re.compile(rb"(?:^|\0)" + mark + rb"(?:\0|$)")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted.search(file.read(_MOST)) is None:
                    continue
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > _BEGAN and fields[_STATE] not in b"ZX":
            found.append(_Process(int(fields[_BEGAN]), int(name), int(fields[_GROUP])))
    return found


def _inside(
    engine: Engine, container: str, spec: ExecSpec, mark: str, number: int, whole: bool
) -> bool:
    """Through a shell in the container, with the rights of the command."""
    words = ("sh", "-c", _SHELL, "sh", mark, str(number), "all" if whole else "group")
    asked = ExecSpec(words, user=spec.user, workdir="/")
    try:
        done = engine.execs.run(container, asked, seconds=SECONDS)
    except ContainerError as error:
        if error.kind not in (Kind.EXEC_FAILED, Kind.TIMEOUT):
            raise
        raise no_way(container, error.message) from error
    if done.exit_code in (0, _NOT_FOUND):
        return done.exit_code == 0
    raise no_way(container, "there is no sh in it" if done.exit_code != _NO_GREP else "no grep")


def no_way(container: str, why: str) -> ContainerError:
    """The error for a command that gets no signal."""
    return ContainerError(
        f"the command in container {container} cannot be sent a signal: {why}",
        kind=Kind.UNSUPPORTED,
        remedy="it still runs there; end it with its container: `podbot stop`",
        subject=container,
    )
