"""A Debian root as a stream, bootstrapped from packages: an image that no registry has to serve.

`mmdebstrap` does the work, as root or as an ordinary user. It is a program of its own, so a small
shell keeps it on a leash: it is ended with us, whether by an error, by Ctrl-C at any moment, by a
kill, or because nobody wants the rest of the stream, and nothing of it stays on the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import IO, cast

from podbot.engine.http import replies
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass

PROGRAM = "mmdebstrap"
SUITE = "bookworm"
"""The release of Debian that is bootstrapped; its Podman is the one that nesting is tried with."""
DEBIAN = "http://deb.debian.org/debian"
"""Where it looks for packages if no mirror is named."""

CHUNK = 256 * 1024
KEPT_LINES = 30
END_SECONDS = 60
"""How long it may take to clean up after itself when it is told to end."""
FOLDER = "podbot-debian-"

# What a sandbox has no use for, and what makes half of the files. Licences stay.
_FILES = (
    "path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*", "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
)  # fmt: skip

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class DebianRoot:
    """What is bootstrapped. ``mirror``: where packages come from, if not from Debian itself."""

    packages: tuple[str, ...]
    suite: str = SUITE
    mirror: str | None = None

    def command(self) -> list[str]:
        """The command that writes it to its standard output."""
        packages = [f"--include={','.join(self.packages)}"] if self.packages else []
        files = [f"--dpkgopt={rule}" for rule in _FILES]
        mirror = [] if self.mirror is None else [self.mirror]
        return [
            PROGRAM, "--format=tar", "--variant=minbase", *packages, *files, self.suite, "-",
            *mirror,
        ]  # fmt: skip

    @property
    def key(self) -> str:
        """A short word for what it holds, wherever that came from."""
        parts = (self.suite, self.packages, _FILES)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def bootstrap(root: DebianRoot, say: Say) -> Generator[bytes, None, None]:
    """The root as a tarball, in pieces; ``say`` is told what is being done.

    The first piece comes when everything is installed. Kinds ``missing_dependency`` and
    ``build_failed``.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise ContainerError(
            f"{PROGRAM} is not installed: it makes a Debian image without any registry",
            kind=Kind.MISSING_DEPENDENCY,
            remedy=f"on Debian or Ubuntu: sudo apt-get install {PROGRAM} debian-archive-keyring; "
            "elsewhere: --from scratch, or --from an image your engine has or can pull",
        )
    mirror = _WHO.sub("//", root.mirror or DEBIAN)
    return _pieces([program, *root.command()[1:]], mirror, say)


# Runs a program with a folder for its temporary files, until it ends or the pipe that is our stdin
# closes, which the kernel sees to however podbot ends. Then its session is told to end, once:
# mmdebstrap waits for its children and cleans up, and a second signal would hit that. What root
# mounts for it is mounted for it alone. It forgets the folder that keys are checked in, so all is
# removed in the end; the second way is for files of the ids that an ordinary user has borrowed.
_KEEPER = """\
export TMPDIR="$1"
patience="$2"
shift 2
exec 3<&0 </dev/null
bootstrapper="$1"
[ "$(id -u)" != 0 ] || ! unshare --mount true 2>/dev/null || set -- unshare --mount -- "$@"
setsid "$@" 3<&- &
program=$!
exec >/dev/null 2>&1
{
    read -r _ <&3
    until kill -s TERM -- "-$program"; do kill -0 "$program" || exit; sleep 0.05; done
    while kill -s 0 -- "-$program" && [ "$patience" -gt 0 ]; do
        sleep 0.1; patience=$((patience - 1))
    done
    kill -s KILL -- "-$program"
} &
watcher=$!
exec 3<&-
wait "$program"
status=$?
kill -s KILL "$watcher"
kill -s KILL -- "-$program"
rm -rf --one-file-system "$TMPDIR" ||
    "$bootstrapper" --unshare-helper rm -rf --one-file-system "$TMPDIR" || rmdir "$TMPDIR"
exit "$status"
"""


def _pieces(command: list[str], mirror: str, say: Say) -> Generator[bytes, None, None]:
    process = listening = None
    try:
        process = _start(command)
        stderr, made = cast("IO[bytes]", process.stderr), cast("IO[bytes]", process.stdout)
        heard = _Heard(say)
        listening = threading.Thread(target=heard.listen, args=(stderr,), daemon=True)
        listening.start()
        # What is there, as it comes. Python's own read() waits until it has all that was asked for,
        # in many reads of which only a waiting one sees a Ctrl-C: one between two of them was lost.
        while data := os.read(made.fileno(), CHUNK):
            yield data
        code = process.wait()
        listening.join()
        if code:
            raise _failure(code, heard, mirror)
    finally:
        if process is not None:
            _end(process)
        if listening is not None:
            listening.join(END_SECONDS)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start it on its leash: whoever is interrupted here has closed the pipes, and it ends."""
    folder = tempfile.mkdtemp(prefix=FOLDER)
    try:
        # Whom an ordinary user becomes for it has to get in.
        os.chmod(folder, 0o711)  # noqa: S103 - nobody else can list it or write there
        patience = str(int(END_SECONDS * 10))
        return subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", folder, patience, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for us to act on
        )
    except OSError:
        os.rmdir(folder)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it clean up and end, and wait for that; if that is interrupted, it goes on by itself."""
    for pipe in (process.stdout, process.stdin):  # the output first: a reader may be waited for
        cast("IO[bytes]", pipe).close()
    process.wait()


class _Heard:
    """What it says of itself: told on, and kept for the case that it fails."""

    def __init__(self, say: Say):
        self._say = say
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        self.errors: deque[str] = deque(maxlen=KEPT_LINES)

    def listen(self, stderr: IO[bytes]) -> None:
        """Until it says no more; then nobody needs the pipe."""
        with stderr:
            while line := stderr.readline(4096):
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        text = _WHO.sub("//", replies.visible(line.decode("utf-8", "replace").strip()))
        self.last.append(text)
        if text.startswith("E: "):
            self.errors.append(text.removeprefix("E: "))
        elif text.startswith("I: ") and text.endswith("...") and not _ASIDE.search(text):
            self._say(text[3:-3])


_WHO = re.compile(r"//[^/\s@]*@")
"""Who one is for a mirror, in its address: not for others to see."""
_ASIDE = re.compile("tempdir|received signal")
_OUT_OF_REACH = re.compile(
    "could not resolve|temporary failure resolving|could not connect|unable to connect"
    "|cannot initiate the connection|connection (?:failed|timed out|refused)|unreachable",
    re.IGNORECASE,
)
_NO_KEY = re.compile("PUBKEY|keyring|is not signed")
_NOT_THERE = re.compile("failed to fetch|does not have a release file", re.IGNORECASE)
_NO_SUB_IDS = re.compile("newuidmap|newgidmap|subuid|subgid|chroot mode|unshare")

_ANOTHER = "name another with --mirror; --from scratch needs none"


def _failure(code: int, heard: _Heard, mirror: str) -> ContainerError:
    """Judged by the errors alone: what else it says has the same words in it."""
    text = "\n".join(heard.errors)
    first = next(iter(heard.errors), "")
    reason = "; ".join(heard.errors or list(heard.last)[-3:]) or "it said nothing"
    message = f"{PROGRAM} ended with {code}: {reason}"
    if _OUT_OF_REACH.search(text):
        message = f"the Debian mirror {mirror} is out of reach: {first}"
        remedy = f"see that this machine can reach it, or {_ANOTHER}"
    elif _NO_KEY.search(text):
        remedy = "install Debian's keys: sudo apt-get install debian-archive-keyring"
    elif _NOT_THERE.search(text):
        message = f"the Debian mirror {mirror} has not all that is needed: {first}"
        remedy = f"see that the address is right, or {_ANOTHER}"
    elif _NO_SUB_IDS.search(text):
        remedy = "it needs sub-ids when you are not root: sudo apt-get install uidmap, and a line "
        remedy += "for you in /etc/subuid and /etc/subgid"
    else:
        remedy = f"mend what it complains of; if it is the mirror, {_ANOTHER}"
    return ContainerError(message, kind=Kind.BUILD_FAILED, remedy=remedy)
