"""What a container is given of podbot: the guest and ``rg``, copied once, mounted read-only.

A copy, as podbot may be installed where the user inside cannot read. It lies beside the layers,
in a folder whose name is made of its contents, so two versions of podbot do not share one. Nothing
in it is ever changed; whoever makes it does so aside and renames.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from podbot.errors import Kind, LaunchError
from podbot.sandbox import boot, interpreter, layers

FOLDER = "kits"
INSIDE = "/run/podbot/kit"
START = boot.started_from(f"{INSIDE}/guest")
"""Importing finds what is compiled if this Python is the host's; else it is compiled (40 ms)."""


def path() -> Path:
    """The folder to mount at `INSIDE`."""
    source = (str(layers.root()), interpreter.ripgrep())
    if not _made(*source).is_dir():  # swept away by another version of podbot
        _made.cache_clear()
    return _made(*source)


def command(line: str, code: str = START) -> list[str]:
    """What a container runs: the guest, on a socket or on descriptors."""
    return boot.command(line, code)


def ripgrep() -> str | None:
    """Where the guest finds ``rg``, if the host has one that runs anywhere."""
    return f"{INSIDE}/rg" if _is_static(interpreter.ripgrep()) else None


def drop_old() -> None:
    """Remove the kits of other versions; to be called while nobody uses any."""
    folder = layers.place() / FOLDER
    if not folder.is_dir():
        return
    import shutil

    current = path()
    for entry in folder.iterdir():
        if entry != current:
            shutil.rmtree(entry, ignore_errors=True)


@lru_cache(maxsize=4)
def _made(root: str, rg: str | None) -> Path:
    parts = boot.sources()
    # The hash Python itself tells versions of a module by; a real one would load OpenSSL.
    whole = f"{importlib.util.MAGIC_NUMBER!r} {_facts(rg)} {parts}".encode()
    kit = Path(root, FOLDER, importlib.util.source_hash(whole).hex())
    if kit.is_dir():
        return kit
    import shutil  # only where one is made

    draft = kit.with_name(f".{kit.name}-{os.urandom(4).hex()}")
    try:
        draft.mkdir(parents=True)
        _fill(draft, parts, rg if _is_static(rg) else None)
        try:
            os.rename(draft, kit)
        except OSError:
            if not kit.is_dir():  # else someone else made the same one first
                raise
            shutil.rmtree(draft)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise LaunchError(
            f"what a container needs of podbot cannot be put into {kit.parent}: {error.strerror}",
            kind=Kind.LAYER_FAILED,
            remedy=f"free some space, or set {layers.ROOT_VARIABLE} to another disk",
        ) from None
    return kit


def _fill(draft: Path, parts: dict[str, bytes], rg: str | None) -> None:
    import shutil

    folder = draft / "guest"
    cache = folder / "__pycache__"
    cache.mkdir(parents=True)
    for name, text in parts.items():
        compiled = os.path.basename(importlib.util.cache_from_source(f"{name}.py"))
        for file, data in (
            (folder / f"{name}.py", text),
            (cache / compiled, _compiled(name, text)),
        ):
            file.write_bytes(data)
            file.chmod(0o644)
    if rg is not None:
        shutil.copyfile(rg, draft / "rg")
        (draft / "rg").chmod(0o755)
    for place in (draft, folder, cache):
        place.chmod(0o755)


def _compiled(name: str, text: bytes) -> bytes:
    """A module as Python keeps compiled ones; of the kind not compared with its source."""
    import marshal

    code = compile(text, f"{INSIDE}/guest/{name}.py", "exec", dont_inherit=True)
    unchecked = (1).to_bytes(4, "little")
    return (
        importlib.util.MAGIC_NUMBER
        + unchecked
        + importlib.util.source_hash(text)
        + marshal.dumps(code)
    )


def _facts(path: str | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    facts = os.stat(path)
    return facts.st_size, facts.st_mtime_ns


@lru_cache(maxsize=4)
def _is_static(path: str | None) -> bool:
    """Whether a program needs no library of the image's: an ELF file that names no interpreter."""
    if path is None:
        return False
    with suppress(OSError, ValueError), open(path, "rb") as file:
        return _names_no_interpreter(file.read(4096))
    return False


def _names_no_interpreter(head: bytes) -> bool:
    if head[:5] != b"\x7fELF\x02":
        return False  # not a 64-bit program at all: a script, say
    start = int.from_bytes(head[32:40], "little")
    size, count = (int.from_bytes(head[at : at + 2], "little") for at in (54, 56))
    kinds = [head[start + size * n : start + size * n + 4] for n in range(count)]
    interpreter_kind = (3).to_bytes(4, "little")
    return bool(kinds) and all(len(kind) == 4 for kind in kinds) and interpreter_kind not in kinds
