"""Files of the home that look like keys or tokens, besides those a list names.

No list is whole. A file that only its owner may read, below a dot-folder of the home or in the home
itself, is taken for a secret if its name says so or its first bytes do. It must not take long, and
one home must give one answer, however busy the machine is: so the bounds are counts and never a
time, what is nearest comes first, in the order of names, and reaching a bound is said.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from contextlib import suppress
from itertools import islice

from podbot.frozen import dataclass
from podbot.visible import visible

# Together at most about 5 ms of a usual machine's time.
MOST_FOLDERS = 150
MOST_NAMES = 3000
MOST_FILES = 600
"""Files whose owner and mode are looked at."""
MOST_IN_FOLDER = 150
"""Of these, in one folder: a full one must not hide all that come after it."""
MOST_LOOKED_INTO = 50
DEEPEST = 4
FIRST_BYTES = 1024
MOST_NAMED = 3

_NAMES = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)(?!.*\.pub$)([._-].*)?"
    r"|.*\.(pem|key|p12|pfx|jks|keystore|kdbx?|ppk|ovpn|jwk|gpg|age|agekey|pgp)"
    r"|\.env(\..*)?|\.claude\.json\..*|\.?(pg|ht)pass(wd)?"
    r"|(.*[._-])?(token|secret|credential|auth|oauth|cookie|pass(wd|word|phrase)?|api[._-]?key"
    r"|private[._-]?key|keyring|(recovery|backup)[._-]?code)s?([._-].*)?",
    re.IGNORECASE | re.DOTALL,
)
_STARTS = re.compile(
    rb"\s*-----BEGIN [A-Z0-9 ]*PRIVATE|PuTTY-User-Key-File|AGE-SECRET-KEY-1|# created: .*\n# public"
    rb"|\$ANSIBLE_VAULT|age-encryption\.org/|\xfe\xed\xfe\xed|\xce\xce\xce\xce|0\x82..\x02\x01\x03"
    rb"|\x03\xd9\xa2\x9a"
    rb"|\s*(gh[oprsu]_|github_pat_|glpat-|[rs]k[-_]|xox[abeprs]-|AKIA|eyJ[A-Za-z0-9_-]{10}|npm_"
    rb"|pypi-|hf_|dckr_pat_|dop_v1_|ya29\.|hvs\.)"
    # One long word, which is no name of a machine or installation, and nothing else
    rb"|(?=[^\s]*[0-9])(?![0-9a-f]{8}(-[0-9a-f]{4}){3}-)[a-z0-9][a-z0-9+=_.~-]{31,}\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
"""How files begin that are a key, a store of keys, or a token."""
_WITHIN = re.compile(
    rb"(token|secret|passwo?r?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key"
    rb"|key-data)[\"']?[ \t]*[:=][ \t]*[\"']?[^\s\"'\[{,}]"
    rb"|\"auth\"\s*:\s*\"[a-z0-9+/=]{8}|\bauthorization: *(bearer|basic) "
    rb"|\bmachine +\S+\s+(login|password) "
    rb"|://[^/\s:@\"']+:[^/\s@\"']+@",
    re.IGNORECASE,
)
"""What settings say where they hold a login."""
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
    """The files, and whether the whole home was looked at.

    ``stamps`` of the folders that were, and of files whose text was no secret then.
    """

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
            f"{home} holds more than is looked at for keys and tokens, so only what is nearest "
            "was: hide what else is secret by its path (--hide PATH, Policy.hidden)"
        )
    return tuple(said)


def _named(paths: tuple[str, ...], home: str | None) -> str:
    """The first of them, each on one line whatever it is called."""
    short = (f"~{path[len(home) :]}" if home else path for path in paths[:MOST_NAMED])
    names = ", ".join(visible(path).replace("\n", "\\n") for path in short)
    more = len(paths) - MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names


_TICK = 20_000_000
"""Nanoseconds within which a folder may change twice, and show one time for both."""
_known: dict[tuple[str, tuple[str, ...]], Found] = {}
_guard = threading.Lock()


def search(home: str, apart: tuple[str, ...]) -> Found:
    """What looks like a key or token below a home, but for the folders ``apart``.

    What was found is not looked for again as long as nothing that was looked at changed.
    """
    with _guard:
        found = _known.get((home, apart))
        if found is not None and _unchanged(found):
            return found
        _known.clear()
        began = time.time_ns()
        found = _Search(frozenset(apart)).run(home)
        if all(changed < began - _TICK for _, changed in found.stamps):
            _known[home, apart] = found
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
        self._names = self._files = self._looked = 0
        self._is_whole = True
        self.paths: list[str] = []
        self._folders: list[tuple[str, int]] = []
        self._harmless: list[tuple[str, int]] = []

    def run(self, home: str) -> Found:
        folders = [(home, 0)]
        try:
            for folder, depth in folders:  # it grows: the nearest come first
                if len(self._folders) >= MOST_FOLDERS:
                    raise _Spent
                for name in self._found_in(folder):
                    inside = depth > 0 or name.startswith(".")
                    if inside and depth < DEEPEST and name not in _NOT_THEIRS:
                        folders.append((f"{folder}/{name}", depth + 1))
        except _Spent:
            self._is_whole = False
        stamps = (*self._folders, *self._harmless)
        return Found(tuple(sorted(self.paths)), self._is_whole, stamps)

    def _found_in(self, folder: str) -> list[str]:
        """Take note of the files of a folder; gives the folders in it."""
        names, files = [], []
        for entry in self._listed(folder):
            if entry.path in self._apart:
                continue
            if _is_folder(entry):
                names.append(entry.name)
            else:
                files.append(entry)
        if len(files) > MOST_IN_FOLDER:
            self._is_whole = False
        for entry in files[:MOST_IN_FOLDER]:
            self._files += 1
            if self._files > MOST_FILES:
                raise _Spent
            if _is_private(entry) and self._looks_secret(entry):
                self.paths.append(entry.path)
        return names

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        """What is in a folder, by name: a file system lists it in an order of its own."""
        left = MOST_NAMES - self._names
        if left <= 0:
            raise _Spent
        try:
            self._folders.append((folder, os.stat(folder).st_mtime_ns))
            with os.scandir(folder) as listed:
                found = list(islice(listed, left + 1))
        except OSError:
            return []  # closed, or gone meanwhile
        self._names += len(found)
        if len(found) > left:
            self._is_whole = False
        return sorted(found[:left], key=_name)

    def _looks_secret(self, entry: os.DirEntry[str]) -> bool:
        if _NAMES.fullmatch(entry.name):
            return True
        self._looked += 1
        if self._looked > MOST_LOOKED_INTO:
            self._is_whole = False
            return False  # a name may still tell of those that follow
        text = _start(entry.path)
        if _STARTS.match(text) or _WITHIN.search(text):
            return True
        with suppress(OSError):  # it may become one
            self._harmless.append((entry.path, entry.stat().st_mtime_ns))
        return False


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


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
        return os.read(fd, FIRST_BYTES).replace(b"\0", b"")  # which text of two bytes has
    except OSError:
        return b""
    finally:
        os.close(fd)
