"""A Debian root as a stream, bootstrapped from packages: an image that no registry has to serve.

`mmdebstrap` does the work, as root or as an ordinary user. It is a program of its own: it is ended
with us, whether by an error, by Ctrl-C or because nobody wants the rest of the stream.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import IO, cast

from podbot.engine import replies
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass

PROGRAM = "mmdebstrap"
SUITE = "bookworm"
"""The release of Debian that is bootstrapped; its Podman is the one that nesting is tried with."""

CHUNK = 256 * 1024
KEPT_LINES = 30
END_SECONDS = 60.0
"""How long it may take to clean up after itself when it is told to end."""

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
    return _pieces([program, *root.command()[1:]], say)


def _pieces(command: list[str], say: Say) -> Generator[bytes, None, None]:
    # In a session of its own, so that it can be ended with all that it started.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=KEPT_LINES)
    told, made = cast("IO[bytes]", process.stderr), cast("IO[bytes]", process.stdout)
    listening = threading.Thread(target=_listen, args=(told, last, say), daemon=True)
    listening.start()
    try:
        while data := made.read(CHUNK):
            yield data
        code = process.wait()
        listening.join()
        if code:
            raise _failure(code, last)
    finally:
        made.close()  # first: what waits for a reader could not end
        _end(process)
        listening.join()
        told.close()


def _listen(told: IO[bytes], last: deque[str], say: Say) -> None:
    while line := told.readline(4096):
        text = replies.visible(line.decode("utf-8", "replace").strip())
        last.append(text)
        if text.startswith("I: ") and text.endswith("...") and "tempdir" not in text:
            say(text[3:-3])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it clean up and end, by force and with all it started if that takes too long."""
    if process.poll() is None:
        # As Ctrl-C would, to all at once: it waits for its children before it cleans up.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(code: int, last: deque[str]) -> ContainerError:
    told = [line for line in last if line.startswith("E: ")] or list(last)[-3:]
    text = "\n".join(last)
    if "PUBKEY" in text or "keyring" in text:
        remedy = "install Debian's keys: sudo apt-get install debian-archive-keyring"
    elif "newuidmap" in text or "chroot mode" in text or "unshare" in text:
        remedy = "it needs sub-ids when you are not root: sudo apt-get install uidmap, and a line "
        remedy += "for you in /etc/subuid and /etc/subgid"
    else:
        remedy = "if a mirror is out of reach name another with --mirror; --from scratch needs none"
    return ContainerError(
        f"{PROGRAM} ended with {code}: {'; '.join(told) or 'it said nothing'}",
        kind=Kind.BUILD_FAILED,
        remedy=remedy,
    )
