"""A root from this machine's own files: Python, git and the usual commands, with their libraries.

It needs no network, no registry and no privileges, and takes a few seconds. Every file lies where
it lies here, and nothing is taken that is not a program, a library or part of Python or git: no
settings, no user's files. What `ldd` says is believed: the programs are this machine's.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress

from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass

COMMANDS = (
    "sh bash cat cp mv rm ln ls mkdir rmdir touch chmod chown stat readlink realpath dirname "
    "basename pwd env printf echo test [ true false sleep date id whoami uname nproc tee head tail "
    "wc sort uniq cut tr seq od dd df du mktemp find xargs grep sed awk mawk gawk diff cmp patch "
    "tar gzip gunzip xz which ps kill timeout sha256sum md5sum base64 git"
)
"""Those that are here are taken; only a shell must be."""

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
OLDEST_PYTHON = (3, 10)
MAX_LINKS = 40

_ASK_PYTHON = """
import json, sys, sysconfig
paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
dynamic = sysconfig.get_config_var("DESTSHARED")
print(json.dumps([list(sys.version_info[:2]), sys.base_prefix, sorted(paths), dynamic]))
"""
# Parts of the standard library that no tool needs, and what was installed beside it.
_NOT_LIBRARY = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test",
    "ensurepip", "tkinter", "turtledemo", "lib2to3",
}  # fmt: skip

_SITE = "sitecustomize.py"

_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_FOLDERS = {"proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755, "root": 0o700, "tmp": 0o1777,
            "var": 0o755, "var/tmp": 0o1777, "etc": 0o755}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python on this machine, and where it keeps what belongs to it."""

    program: str
    library: tuple[str, ...]


def root() -> bytes:
    """The root as a tarball. Kind ``build_failed`` if a shell or Python is missing here."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _fill(_Gathering(archive))
    return out.getvalue()


def _fill(gathering: _Gathering) -> None:
    for name, mode in _FOLDERS.items():
        gathering.folder(name, mode)
    gathering.folder("workspace", 0o755, owner=65534)
    for name, text in _FILES.items():
        gathering.text(name, text)
    found = {
        name: path for name in COMMANDS.split() if (path := shutil.which(name, path=SEARCH_PATH))
    }
    if "sh" not in found:
        raise _lacking("a shell")
    python = interpreter()
    programs = [*found.values(), python.program, *_git_programs(found.get("git"))]
    parts = [path for folder in python.library for path in _library(folder)]
    for path in [*programs, *parts]:
        gathering.add(path)
    binaries = [path for path in [*programs, *parts] if _is_binary(path)]
    for path in libraries(binaries):
        gathering.add(path)
    for name in ("/bin/sh", "/usr/bin/env"):  # where the first lines of scripts look
        gathering.add(name)
    gathering.alias("usr/bin/python3", python.program)
    if os.path.exists(CERTIFICATES):
        gathering.text(CERTIFICATES[1:], open_text(CERTIFICATES))


def open_text(path: str) -> str:
    """The text of a file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def interpreter() -> Interpreter:
    """The system's Python if it is young enough, else the one we run on."""
    ours = os.path.realpath(sys.executable)
    for program in ("/usr/bin/python3", ours):
        try:
            command = [program, "-I", "-S", "-c", _ASK_PYTHON]
            done = subprocess.run(command, capture_output=True, check=True, timeout=60)
            version, prefix, paths, dynamic = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        if tuple(version) >= OLDEST_PYTHON:
            dynamic = [] if not dynamic or _within(dynamic, paths) else [dynamic]
            return Interpreter(_outside_of_venv(program, prefix), (*paths, *dynamic))
    raise _lacking(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")


def _outside_of_venv(program: str, prefix: str) -> str:
    found = os.path.realpath(program)
    return found if _within(found, [prefix]) else program


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _git_programs(git: str | None) -> Iterator[str]:
    if git is None:
        return
    done = subprocess.run([git, "--exec-path"], capture_output=True, text=True, check=False)
    folder = done.stdout.strip()
    if done.returncode == 0 and os.path.isabs(folder) and os.path.isdir(folder):
        yield from (entry.path for entry in sorted(os.scandir(folder), key=lambda e: e.name))
    if os.path.isdir("/usr/share/git-core/templates"):
        yield "/usr/share/git-core/templates"


def _library(folder: str) -> Iterator[str]:
    """The files of the standard library."""
    for place, folders, files in os.walk(folder):
        # `config-…` is for linking Python into programs, and large.
        folders[:] = sorted(
            name for name in folders if name not in _NOT_LIBRARY and not name.startswith("config-")
        )
        # Of the machine, not of Python: it would do here what was meant for there.
        yield from (os.path.join(place, name) for name in sorted(files) if name != _SITE)


def _is_binary(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def libraries(programs: list[str]) -> list[str]:
    """The shared libraries that these need, the loader included."""
    found: set[str] = set()
    for start in range(0, len(programs), 100):
        batch = programs[start : start + 100]
        # It fails for static ones, and says nothing of them.
        done = subprocess.run(["ldd", *batch], capture_output=True, text=True, check=False)
        found.update(re.findall(r"^\t(?:\S+ => )?(/\S+) \(0x", done.stdout, re.MULTILINE))
    return sorted(found)


def _lacking(what: str) -> ContainerError:
    return ContainerError(
        f"this machine lacks {what}, which an image of its files needs",
        kind=Kind.BUILD_FAILED,
        remedy="use --from debian, or --from an image that your engine has or can pull",
    )


class _Gathering:
    """Files on their way into an archive, each once, with the links that lead to them."""

    def __init__(self, archive: tarfile.TarFile):
        self._archive = archive
        self._there: set[str] = {""}

    def folder(self, name: str, mode: int, owner: int = 0) -> None:
        """A folder, unless it is there."""
        if name not in self._there:
            self._there.add(name)
            entry = _entry(name, tarfile.DIRTYPE, mode)
            entry.uid = entry.gid = owner
            self._archive.addfile(entry)

    def text(self, name: str, text: str) -> None:
        """A file that is not the machine's."""
        if name not in self._there:
            self._parents(name)
            self._there.add(name)
            data = text.encode()
            entry = _entry(name, tarfile.REGTYPE, 0o644)
            entry.size = len(data)
            self._archive.addfile(entry, io.BytesIO(data))

    def alias(self, name: str, target: str) -> None:
        """A link under a name that others count on, unless something is there."""
        if name not in self._there:
            self._parents(name)
            self._link(name, target)

    def add(self, path: str) -> None:
        """A file or a whole folder of this machine, and each link on the way."""
        for _ in range(MAX_LINKS):
            link = self._first_link(path)
            if link is None:
                break
            name, target, rest = link
            if name not in self._there:
                self._parents(name)
                self._link(name, target)
            path = os.path.normpath(os.path.join("/", os.path.dirname(name), target, rest))
        if os.path.isdir(path):
            for entry in sorted(os.scandir(path), key=lambda each: each.name):
                self.add(entry.path)
        else:
            self._file(path)

    def _first_link(self, path: str) -> tuple[str, str, str] | None:
        """The first part of a path that is a link, where it leads, and what follows it."""
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            name = "/".join(parts[:count])
            if os.path.islink(f"/{name}"):
                return name, os.readlink(f"/{name}"), "/".join(parts[count:])
        return None

    def _parents(self, name: str) -> None:
        above = os.path.dirname(name)
        if above not in self._there:
            self._parents(above)
            self.folder(above, 0o755)

    def _link(self, name: str, target: str) -> None:
        self._there.add(name)
        entry = _entry(name, tarfile.SYMTYPE, 0o777)
        entry.linkname = target
        self._archive.addfile(entry)

    def _file(self, path: str) -> None:
        name = path[1:]
        if name in self._there:
            return
        # What is not for this user to read is not for the image either.
        with (
            suppress(PermissionError, FileNotFoundError),
            open(path, "rb", opener=_at_once) as file,
        ):
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return
            self._parents(name)
            self._there.add(name)
            # Nothing in a sandbox gains privileges from a bit on a file.
            entry = _entry(name, tarfile.REGTYPE, found.st_mode & 0o755)
            entry.size = found.st_size
            self._archive.addfile(entry, file)


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting, as one would for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)
