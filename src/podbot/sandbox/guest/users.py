"""Running a command as another user: where the guest is root it may, elsewhere it says why not."""

from __future__ import annotations

import errno
import os
import signal

from podbot.sandbox.guest.loop import SPAWN_SIGNALS
from podbot.sandbox.guest.refusals import Refused
from podbot.sandbox.guest.spawning import (
    DEFAULT_PATH,
    find_program,
    not_started,
    spawn_program,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from podbot.sandbox.guest.spawning import Actions


class _Identity:
    """A user with its groups, and its home if it has one."""

    def __init__(self, user: str) -> None:
        import grp  # seldom needed, all three
        import pwd

        name, _, group = user.partition(":")
        for each in (name, group):
            # To the kernel the last number means to stay who one is: root, that would be.
            if each.isdigit() and int(each) >= 2**32 - 1:
                raise Refused("invalid", f"{each} is no number of a user or a group")
        try:
            found = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        except KeyError:
            if not name.isdigit():
                raise Refused("invalid", f"there is no user {name}") from None
            found = None
        self.uid = int(name) if found is None else found.pw_uid
        self.gid = self.uid if found is None else found.pw_gid
        if group:
            try:
                self.gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
            except KeyError:
                raise Refused("invalid", f"there is no group {group}") from None
        self.groups = [self.gid]
        self.env = {}
        if found is not None:
            if not group:
                self.groups = os.getgrouplist(found.pw_name, self.gid)
            self.env = {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name}

    @property
    def is_own(self) -> bool:
        """Whether that is who we are."""
        return self.uid == os.geteuid() and self.gid == os.getegid()


def spawn_as(
    user: str, argv: list[str], env: Mapping[str, str], cwd: str | int, actions: Actions
) -> int:
    """As `spawn_program`, as another user; gives its pid."""
    identity = _Identity(user)
    if identity.is_own:
        return spawn_program(argv, env, cwd, actions)
    whole = dict(env, **identity.env)
    program = find_program(argv[0], whole.get("PATH", DEFAULT_PATH))
    read, write = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _become(identity, program, argv, whole, cwd, actions, write)
        os.close(write)
        write = -1
        told = os.read(read, 64)
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    if not told:
        return pid
    os.waitpid(pid, 0)
    step, _, number = told.partition(b" ")
    error = OSError(int(number), os.strerror(int(number)))
    if step == b"user":
        raise Refused(
            "unsupported",
            f"nothing can be run as {user} here: this sandbox is one user's, {os.geteuid()}, "
            "who may not become another",
        )
    if step == b"cwd":
        raise Refused("bad_cwd", f"{cwd}: {error.strerror}, for {user}")
    raise not_started(error, argv[0])


def _become(
    identity: _Identity,
    program: str,
    argv: list[str],
    env: Mapping[str, str],
    cwd: str | int,
    actions: Actions,
    line: int,
) -> NoReturn:
    """In the child: be that user, then the program; what fails is told as step and errno."""
    step = b"user"
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        for number in SPAWN_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
        step = b"cwd"
        os.chdir(cwd)
        step = b"run"
        for action in actions:
            os.dup2(int(action[1]), int(action[2]))
        try:
            os.execve(program, argv, env)  # noqa: S606 - that is what it is for
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ["sh", program, *argv[1:]], env)  # noqa: S606 - likewise
    except OSError as error:
        os.write(line, step + b" %d" % (error.errno or errno.EIO))
    finally:
        os._exit(127)
