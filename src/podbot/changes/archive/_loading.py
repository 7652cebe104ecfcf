"""Loading an archive, which may be hostile, into the upper layer of a new layer.

Only what the manifest announces is taken, in its order (see `archive_plan`), and put into place by
descriptor: nothing is opened that was there before, no link is followed, and the layer is private
until it is reviewed. It counts as one when all is there and on the disk: whatever goes wrong
before, even a kill, nothing of it is seen. The host's own folders are only looked at, never written
to.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from podbot.changes import next_steps
from podbot.changes.applying import gate
from podbot.changes.archive._fields import NAME, Fields
from podbot.changes.archive._manifest import (
    MAX_LINE,
    TIME,
    ArchiveLimits,
    Entry,
    Manifest,
    old_as_data,
    old_from,
    parsed,
)
from podbot.changes.archive._members import Plan, Step, planned
from podbot.changes.archive._tar import OPAQUE, Member, MemberType, bad
from podbot.changes.archive._tar_reading import Reader
from podbot.changes.archive._unpacking import Unpacking
from podbot.changes.model import ChangeKind, OldFacts
from podbot.config import places
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.sandbox import bookkeeping, layers
from podbot.sandbox.layers import Layer

OLDS = "olds.json"
METHOD = "archive"
_NOT_ITS_FAULT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE}
)
MAX_OLDS = 512 << 20
"""The largest list of what was there before, in bytes."""


def load(
    file: BinaryIO,
    targets: Sequence[str] | None = None,
    limits: ArchiveLimits = ArchiveLimits(),  # noqa: B008 - frozen
    *,
    within: str | None = None,
    note: Callable[[Layer], object] | None = None,
) -> Layer:
    """A new layer with what an archive holds, over its targets or the folders given for them.

    ``within`` is a real folder that the archive's own targets must be or lie in; folders that were
    given may be anywhere. ``note`` is called when all is there, right before the layer counts.

    Raises `ChangesError`: ``bad_archive`` naming the member, ``target_missing`` and other
    ``target_…`` kinds, ``disk_full``, ``io``. Nothing is left behind then.
    """
    try:
        reader = Reader(file)
        manifest = _manifest(reader, limits)
        plan = planned(manifest, limits)
        chosen = _chosen(manifest, targets)
        if targets is None and within is not None:
            _check_within(chosen, within)
        gate.heal_first(chosen)
        with suppress(OSError):  # what others left; it may be looked at another time
            for id in layers.sweep_half_filled():
                bookkeeping.forget(id)
        layer, lock = layers.create(chosen, METHOD, home=False, hidden=_hidden(), filling=True)
    except ChangesError:
        raise
    except PodbotError as error:
        raise ChangesError(error.message, kind=error.kind, remedy=error.remedy) from None
    except OSError as error:
        raise _failed(error) from None
    except UnicodeError:
        raise ChangesError(
            "a target has letters that no path can have",
            kind=Kind.TARGET_REFUSED,
            remedy="name the folder that the changes are for",
        ) from None
    whole = False
    try:
        with Unpacking(layer) as unpacking:
            _unpack(reader, plan, unpacking)
            unpacking.finish({(e.target, e.path): e for e in manifest.entries if e.kind == TIME})
        _write_olds(layer, manifest)
        if note is not None:
            note(layer)
        layers.complete(layer, lock, durable=True)
        whole = True
    except OSError as error:
        raise _failed(error) from None
    finally:
        os.close(lock)
        if not whole:
            layers.scrap(layer.path)
    return layer


def _failed(error: OSError) -> ChangesError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return ChangesError(
        f"the archive cannot be loaded: {error.strerror or error}",
        kind=Kind.DISK_FULL if full else Kind.IO,
        remedy=f"free some space, or set {layers.ROOT_VARIABLE} to a folder on another disk",
    )


# The manifest


def _manifest(reader: Reader, limits: ArchiveLimits) -> Manifest:
    member = reader.member()
    if member is None or member.name != NAME or member.type is not MemberType.FILE:
        raise bad("it does not start with a manifest")
    if member.size > limits.manifest or member.segments is not None:
        raise bad("its manifest is too large", NAME)
    return parsed(_lines(reader, member), limits)


def _lines(reader: Reader, member: Member) -> Iterator[bytes]:
    held = b""
    for _, chunk in reader.chunks(member):
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            if len(line) > MAX_LINE:
                raise bad("its manifest has too long a line", NAME)
            yield line
        if len(held) > MAX_LINE:
            raise bad("its manifest has too long a line", NAME)
    if held:
        raise bad("its manifest is cut off", NAME)


# Members


def _unpack(reader: Reader, plan: Plan, unpacking: Unpacking) -> None:
    unpacking.expect(plan.folders)
    for step in plan.steps:
        member = None
        if step.member is not None:
            member = reader.member()
            _compare(step, step.member, member)
        try:
            unpacking.put(step, member, reader)
        except (OSError, OverflowError) as error:
            number = error.errno if isinstance(error, OSError) else None
            if number in _NOT_ITS_FAULT:
                raise
            why = os.strerror(number) if number else "a number is too large"
            raise bad(f"it cannot be put into place: {why}", step.path) from None
    extra = reader.member()
    if extra is not None:
        raise bad("the manifest does not list it", extra.name)


def _compare(step: Step, wanted: Member, found: Member | None) -> None:
    """Whether a member is the one that has to come now."""
    if found is None:
        raise bad("it is missing", wanted.name)
    if found.name != wanted.name:
        raise bad(f"it is not what the manifest says comes here ({wanted.name!a})", found.name)
    for name in ("type", "link", "size", "mode", "mtime_ns", "uid", "gid"):
        if getattr(found, name) != getattr(wanted, name):
            raise bad(f"its {name.removesuffix('_ns')} is not the one in the manifest", found.name)
    opaque = step.entry is not None and step.entry.new is not None and step.entry.new.opaque
    if (OPAQUE in dict(found.xattrs)) != opaque:
        raise bad("whether it was replaced is not what the manifest says", found.name)


# Targets


def _chosen(manifest: Manifest, given: Sequence[str] | None) -> tuple[str, ...]:
    """The folders to lie over: checked, real, and apart from each other."""
    from podbot.sandbox.folders import existing_folder

    if isinstance(given, str):
        given = (given,)
    if given is not None and len(given) != len(manifest.targets):
        raise ChangesError(
            f"the archive has {len(manifest.targets)} targets, and {len(given)} were given",
            kind=Kind.INVALID,
            remedy="give a folder for each, in the order of the archive",
        )
    found: list[str] = []
    for index, target in enumerate(manifest.targets if given is None else given):
        real = str(existing_folder(target))
        if given is None and real != target:
            # Only the user may name a folder by a link: where it leads may have changed.
            raise _refused(target, f"leads to {real}")
        if real == "/" or f"{layers.root()}/".startswith(f"{real}/"):
            raise _refused(real, "holds the layers")
        for other in found[:index]:
            if f"{real}/".startswith(f"{other}/") or f"{other}/".startswith(f"{real}/"):
                raise _refused(real, f"overlaps with {other}")
        found.append(real)
    return tuple(found)


def _check_within(targets: Sequence[str], folder: str) -> None:
    """Refuse targets elsewhere, which only the archive named and nobody here."""
    for target in targets:
        if not f"{target}/".startswith(f"{folder.rstrip('/')}/"):
            raise ChangesError(
                f"the archive is for {target!a}, which is not in the current folder",
                kind=Kind.TARGET_REFUSED,
                remedy=next_steps.WHICH_FOLDER,
            )


def _refused(target: str, why: str) -> ChangesError:
    return ChangesError(
        f"{target!a} cannot be a target: it {why}",
        kind=Kind.TARGET_REFUSED,
        remedy="name the folder that the changes are for",
    )


def _hidden() -> tuple[str, ...]:
    """What no sandbox could have seen by default is not for an archive either."""
    from podbot.sandbox.policy import Policy

    home = Path(os.path.expanduser("~"))
    return (*Policy().hidden_paths(home), os.path.realpath(places.state_place()))


# What was there before


def _write_olds(layer: Layer, manifest: Manifest) -> None:
    fd = os.open(layer.path / OLDS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write("{")
        for number in range(len(manifest.targets)):
            file.write(f'{", " if number else ""}"{number}": {{')
            first = True
            for path, facts in _olds_of(manifest, number):
                data = None if facts is None else old_as_data(facts)
                file.write(f"{'' if first else ', '}\n{json.dumps(path)}: {json.dumps(data)}")
                first = False
            file.write("}")
        file.write("}\n")


def _olds_of(manifest: Manifest, target: int) -> Iterator[tuple[str, OldFacts | None]]:
    found: dict[str, OldFacts | None] = {}
    for entry in manifest.entries:
        if entry.target == target and entry.kind != TIME:
            _note_old(found, entry)
    yield from found.items()


def _note_old(found: dict[str, OldFacts | None], entry: Entry) -> None:
    if entry.kind == ChangeKind.RENAMED and entry.source is not None:
        found[entry.source] = entry.old
        found.setdefault(entry.path, None)
    else:
        found[entry.path] = entry.old


def read_olds(layer: Layer) -> dict[int, dict[str, OldFacts | None]]:
    """What the archive says was at each path before, by target; None where nothing was.

    A path that is not in it was no part of the changes. Empty if there is no such list: then
    nothing counts as what was there. Raises `ChangesError` (``bad_archive``) if it is damaged.
    """
    try:
        fd = os.open(layer.path / OLDS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _damaged(layer, error.strerror or "it cannot be opened") from None
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_OLDS:
            raise _damaged(layer, "it is not a file of ours")
        try:
            found = json.loads(file.read(MAX_OLDS))
            return {
                int(number): {
                    str(path): None if data is None else old_from(Fields(data))
                    for path, data in part.items()
                }
                for number, part in found.items()
            }
        except (OSError, ValueError, AttributeError, RecursionError, ChangesError):
            raise _damaged(layer, "it cannot be understood") from None


def _damaged(layer: Layer, why: str) -> ChangesError:
    return ChangesError(
        f"{layer.path / OLDS} says what was there before the changes, and {why}",
        kind=Kind.BAD_ARCHIVE,
        remedy="discard the layer and load the archive again",
    )
