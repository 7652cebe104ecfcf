"""Starting a program, quickly, and saying why it did not start."""

from __future__ import annotations

import errno
import os
import stat

from podbot.sandbox.guest.loop import SPAWN_SIGNALS
from podbot.sandbox.guest.refusals import Refused, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Actions = list[tuple[int | str, ...]]
    """What posix_spawn does to a child's descriptors."""


DEFAULT_PATH = "/usr/bin:/bin"
FIRST_LINE = 256


def find_program(name: str, path: str) -> str:
    """Where a command is, as execvp would look, with the reason when it is nowhere."""
    if "/" in name:
        return name
    denied = False
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        try:
            if stat.S_ISREG(os.stat(candidate).st_mode):
                if os.access(candidate, os.X_OK):
                    return candidate
                denied = True
        except OSError:
            continue
    if denied:
        raise Refused("command_not_executable", f"{name}: found in PATH but not executable")
    raise Refused("command_not_found", f"{name}: no such command in PATH")


def places_of(name: str, path: str, cwd: str) -> Iterator[str]:
    """Where starting a command would look, without links; of a script, its interpreter too."""
    for folder in [""] if "/" in name else path.split(":"):
        place = os.path.realpath(os.path.join(cwd, folder, name))
        yield place
        interpreter = _interpreter(place)
        if interpreter:
            yield os.path.realpath(os.path.join(cwd, interpreter))


def _interpreter(script: str) -> str:
    """What the first line of a script names, if it is one."""
    try:
        fd = os.open(script, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        first = os.read(fd, FIRST_LINE).partition(b"\n")[0] if is_file else b""
    except OSError:
        first = b""
    finally:
        os.close(fd)
    words = first[2:].split(None, 1)
    return os.fsdecode(words[0]) if words and first[:2] == b"#!" else ""


def enter(cwd: str | int) -> None:
    """Step into the folder a command shall start in; the caller steps out again."""
    try:
        os.chdir(cwd)
    except OSError as error:
        raise Refused("bad_cwd", refused(error, cwd).message) from error


def spawn_program(argv: list[str], env: Mapping[str, str], cwd: str | int, actions: Actions) -> int:
    """Start a program in a session of its own; gives its pid.

    posix_spawn shares this process's memory until exec, which is what makes it quick. The guest
    has one thread, so it may step into the folder for a moment.
    """
    program = find_program(argv[0], env.get("PATH", DEFAULT_PATH))
    enter(cwd)
    try:
        return os.posix_spawn(
            program, argv, env, file_actions=actions, setsid=True, setsigdef=SPAWN_SIGNALS
        )
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: what a shell would do
            try:
                return os.posix_spawn(
                    "/bin/sh",
                    ["sh", program, *argv[1:]],
                    env,
                    file_actions=actions,
                    setsid=True,
                    setsigdef=SPAWN_SIGNALS,
                )
            except OSError as again:
                error = again
        raise not_started(error, argv[0]) from error
    finally:
        os.chdir("/")


def not_started(error: OSError, name: str) -> Refused:
    """Why a program did not start."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Refused("command_not_found", f"{name}: no such program (or its interpreter)")
    if error.errno in (errno.EACCES, errno.EPERM, errno.ENOEXEC):
        return Refused("command_not_executable", f"{name}: not executable")
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return Refused("out_of_processes", f"{name}: no room for another process")
    # gVisor says that a name is too long; the program's was found, so it is an argument's.
    if error.errno in (errno.E2BIG, errno.ENAMETOOLONG):
        return Refused("too_large", f"{name}: the arguments are too long")
    return refused(error, name)


def pipe_to(actions: Actions, target: int, reading: bool) -> tuple[int, int]:
    """A pipe whose far end becomes a child's descriptor; gives (near end, far end)."""
    read, write = os.pipe()
    near, far = (write, read) if reading else (read, write)
    actions.append((os.POSIX_SPAWN_DUP2, far, target))
    return near, far
