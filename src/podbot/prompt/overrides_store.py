"""Where overrides are kept: ``.podbot/prompts/overrides/<ns>/<key>/<tag>.json`` below a folder.

The folder is often a repository that others write to, so a file is read as hostile input: bounded,
strict, and reached one folder at a time without following a link. It is written beside its place
and renamed, so a reader sees the old file or the new one. Nothing here applies an override.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from podbot.errors import Kind, PromptError
from podbot.prompt import json_text
from podbot.prompt._overrides_text import decoded, encoded
from podbot.prompt.json_text import quoted
from podbot.prompt.overrides import PromptOverrides, expect_prompt
from podbot.prompt.section import KEY
from podbot.runtime.given import expect

if TYPE_CHECKING:
    from podbot.prompt.prompt import Prompt

FOLDER = (".podbot", "prompts", "overrides")
MAX_BYTES = 4 << 20

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class OverridesStore:
    """Overrides below one folder, such as the root of a project."""

    def __init__(self, root: str | os.PathLike[str]):
        expect(root, (str, os.PathLike), "the folder of overrides", PromptError)
        self.root = Path(root)

    def path(self, ns: str, key: str, tag: str) -> Path:
        """Where the overrides of a prompt are kept."""
        return self.root.joinpath(*_folders(ns, key), _file(tag))

    def load(self, prompt: Prompt, tag: str = "latest") -> PromptOverrides | None:
        """The overrides of a prompt, or None if there are none.

        Raises `PromptError` (kind ``bad_override``) for a file that is not as it should be.
        """
        expect_prompt(prompt)
        path = self.path(prompt.ns, prompt.key, tag)
        try:
            with self._folder(prompt.ns, prompt.key, make=False) as folder:
                data = _read(folder, _file(tag), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(path, "cannot be read", error) from None
        found = _parsed(path, data)
        if (found.ns, found.key, found.tag) != (prompt.ns, prompt.key, tag):
            raise _refused(path, "it says that it is for another prompt or tag")
        return found

    def save(self, overrides: PromptOverrides) -> Path:
        """Write overrides to their place, whole or not at all; the path of the file."""
        expect(overrides, PromptOverrides, "what to save", PromptError)
        path = self.path(overrides.ns, overrides.key, overrides.tag)
        text = json.dumps(encoded(overrides), indent=2, ensure_ascii=False) + "\n"
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_BYTES:
            raise _refused(path, f"it would have {len(data)} bytes, {MAX_BYTES} are allowed")
        _parsed(path, data)  # what is written can be read again
        try:
            with self._folder(overrides.ns, overrides.key, make=True) as folder:
                _write(folder, _file(overrides.tag), data)
        except OSError as error:
            raise _failed(path, "cannot be written", error) from None
        return path

    def remove(self, prompt: Prompt, tag: str = "latest") -> bool:
        """Remove the overrides of a prompt; whether there were any."""
        expect_prompt(prompt)
        try:
            with self._folder(prompt.ns, prompt.key, make=False) as folder:
                os.unlink(_file(tag), dir_fd=folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            path = self.path(prompt.ns, prompt.key, tag)
            raise _failed(path, "cannot be removed", error) from None
        return True

    def tags(self, prompt: Prompt) -> tuple[str, ...]:
        """The tags under which this prompt has overrides."""
        expect_prompt(prompt)
        try:
            with self._folder(prompt.ns, prompt.key, make=False) as folder:
                names = os.listdir(folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            path = self.path(prompt.ns, prompt.key, "latest").parent
            raise _failed(path, "cannot be listed", error) from None
        tags = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return tuple(sorted(tag for tag in tags if KEY.fullmatch(tag)))

    @contextlib.contextmanager
    def _folder(self, ns: str, key: str, *, make: bool) -> Iterator[int]:
        """The folder of a prompt, by descriptor; only the root itself may lie behind a link."""
        here = os.open(self.root, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
        try:
            for name in _folders(ns, key):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=here)
                below = os.open(name, _FOLDER_FLAGS, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def _parsed(path: Path, data: bytes) -> PromptOverrides:
    try:
        return decoded(json_text.load(data.decode(), MAX_BYTES))
    except ValueError as error:
        raise _refused(path, str(error)) from None


def _read(folder: int, name: str, path: Path) -> bytes:
    with open(os.open(name, _READ_FLAGS, dir_fd=folder), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise _refused(path, "it is not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _refused(path, f"it has more than {MAX_BYTES} bytes")
    return data


def _write(folder: int, name: str, data: bytes) -> None:
    draft = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, _WRITE_FLAGS, 0o644, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def _folders(ns: str, key: str) -> tuple[str, ...]:
    for part in (*ns.split("/"), key):
        _check(part)
    return (*FOLDER, *ns.split("/"), key)


def _file(tag: str) -> str:
    return f"{_check(tag)}.json"


def _check(part: str) -> str:
    # Begins with a letter or a digit and holds no slash: never `..`, never another folder.
    if KEY.fullmatch(part) is None:
        raise PromptError(
            f"{quoted(part)} cannot be part of the place of an override",
            kind=Kind.BAD_OVERRIDE,
            remedy="use 1 to 64 of a-z, 0-9, '.', _ and -, beginning with a letter or a digit",
        )
    return part


def _refused(path: Path, reason: str) -> PromptError:
    return PromptError(
        f"the overrides in {path} are refused: {reason}",
        kind=Kind.BAD_OVERRIDE,
        remedy="mend the file, or remove it",
    )


def _failed(path: Path, what: str, error: OSError) -> PromptError:
    return PromptError(
        f"the overrides in {path} {what}: {error.strerror}",
        kind=Kind.BAD_OVERRIDE,
        remedy="no step of the path below the project may be a link or another user's",
    )
