"""Files of the home that look like keys or tokens, besides those a list names.

No list is whole. A file that only its owner may read, below a dot-folder of the home or in the home
itself, is taken for a secret if its name says so or its first bytes do. It must not take long: the
search goes no deeper and no longer than its bounds, nearest first, and says so when it reached one.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time

from podbot.frozen import dataclass
from podbot.visible import visible

MOST_FOLDERS = 250
MOST_ENTRIES = 4000
MOST_LOOKED_INTO = 120
DEEPEST = 4
MOST_SECONDS = 0.004
FRESH_SECONDS = 2.0
FIRST_BYTES = 512
MOST_NAMED = 3

_NAMES = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk|ovpn|jwk|gpg|age|pgp)"
    r"|\.env(\..*)?|(.*[._-])?(token|secret|credential|auth|oauth|cookie|passw(or)?d|passphrase"
    r"|api[._-]?key|private[._-]?key|keyring)s?([._-].*)?",
    re.IGNORECASE | re.DOTALL,
)
_TEXTS = re.compile(
    rb"\s*-----BEGIN [A-Z0-9 ]*PRIVATE|PuTTY-User-Key-File|AGE-SECRET-KEY-1|# created: .*\n# public"
    rb"|\s*(gh[oprsu]_|github_pat_|glpat-|sk-|xox[abeprs]-|AKIA|eyJ[A-Za-z0-9_-]{10}|npm_|pypi-|hf_"
    rb"|dop_v1_|ya29\.|hvs\.)"
    rb"|(?s:.*)[\"']?(access_?token|refresh_?token|id_?token|private_?key|api_?key|client_?secret"
    rb"|auth_?token|_authToken|secret_?key|password)[\"']?\s*[:=]\s*[\"']?[^\s\"'\[{,}]",
    re.IGNORECASE,
)
_NOT_THEIRS = frozenset(
    {
        ".cache", ".git", ".npm", ".nvm", ".pyenv", ".rbenv", ".rustup", ".sdkman",
        ".vscode-server",
        "Trash", "__pycache__", "extensions", "node_modules", "registry", "site-packages",
    }
)  # fmt: skip
"""Folders of tools and caches: full, and nobody keeps a login there."""


@dataclass(frozen=True, slots=True)
class Found:
    """The files, and whether the whole home was looked at; ``stamps`` of the folders that were."""

    paths: tuple[str, ...]
    whole: bool
    stamps: tuple[tuple[str, int], ...]


NOTHING = Found((), True, ())


def notes(found: Found, home: str | None) -> tuple[str, ...]:
    """What the person should know of it."""
    said = []
    if found.paths:
        many = len(found.paths)
        what = f"1 file below {home} looks like a key or token and is hidden"
        if many > 1:
            what = f"{many} files below {home} look like keys or tokens and are hidden"
        said.append(
            f"{what} ({_named(found.paths, home)}): "
            "Policy.readable shows one, hide_by_rule=False all"
        )
    if not found.whole:
        said.append(
            f"{home} holds more than could be looked at for keys and tokens: "
            "only the nearest folders were searched"
        )
    return tuple(said)


def _named(paths: tuple[str, ...], home: str | None) -> str:
    """The first of them, each on one line whatever it is called."""
    short = (f"~{path[len(home) :]}" if home else path for path in paths[:MOST_NAMED])
    names = ", ".join(visible(path).replace("\n", "\\n") for path in short)
    more = len(paths) - MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names


_known: dict[tuple[str, tuple[str, ...]], tuple[float, Found]] = {}
_guard = threading.Lock()


def search(home: str, apart: tuple[str, ...]) -> Found:
    """What looks like a key or token below a home, but for the folders ``apart``.

    What was found a moment ago is not looked for again; nor what is older, if no folder changed.
    """
    now = time.monotonic()
    with _guard:
        when, found = _known.get((home, apart), (0.0, None))
        if found is not None and (
            now - when < FRESH_SECONDS or (found.whole and _unchanged(found))
        ):
            _known[home, apart] = (now, found)
            return found
        found = _Search(frozenset(apart)).run(home)
        _known.clear()
        _known[home, apart] = (now, found)
        return found


def _unchanged(found: Found) -> bool:
    for folder, changed in found.stamps:
        try:
            if os.stat(folder).st_mtime_ns != changed:
                return False
        except OSError:
            return False
    return True


class _Spent(Exception):
    """A bound was reached."""


class _Search:
    """One search, with what it may still spend."""

    def __init__(self, apart: frozenset[str]):
        self._apart = apart
        self._end = time.monotonic() + MOST_SECONDS
        self._entries = self._looked = 0
        self.paths: list[str] = []
        self.stamps: list[tuple[str, int]] = []

    def run(self, home: str) -> Found:
        folders = [(home, 0)]
        try:
            for folder, depth in folders:  # it grows: the nearest come first
                if len(self.stamps) >= MOST_FOLDERS:
                    raise _Spent
                for name in self._look(folder):
                    inside = depth > 0 or name.startswith(".")
                    if inside and depth < DEEPEST and name not in _NOT_THEIRS:
                        folders.append((f"{folder}/{name}", depth + 1))
        except _Spent:
            return Found(tuple(sorted(self.paths)), False, tuple(self.stamps))
        return Found(tuple(sorted(self.paths)), True, tuple(self.stamps))

    def _look(self, folder: str) -> list[str]:
        """Take note of the files of a folder; gives the folders in it."""
        names = []
        try:
            self.stamps.append((folder, os.stat(folder).st_mtime_ns))
            with os.scandir(folder) as listed:
                for entry in listed:
                    self._entries += 1
                    if self._entries > MOST_ENTRIES or time.monotonic() > self._end:
                        raise _Spent
                    if entry.path in self._apart:
                        continue
                    if _is_folder(entry):
                        names.append(entry.name)
                    elif _is_private(entry) and self._looks_secret(entry):
                        self.paths.append(entry.path)
        except OSError:
            pass  # closed, or gone meanwhile: what was seen of it counts
        return names

    def _looks_secret(self, entry: os.DirEntry[str]) -> bool:
        if _NAMES.fullmatch(entry.name):
            return True
        self._looked += 1
        if self._looked > MOST_LOOKED_INTO:
            raise _Spent
        return _TEXTS.match(_start(entry.path)) is not None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_private(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file that its owner, who is us, keeps from everybody else."""
    try:
        facts = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    is_ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
    return is_ours and not facts.st_mode & 0o077 and facts.st_size > 0


def _start(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, FIRST_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)
