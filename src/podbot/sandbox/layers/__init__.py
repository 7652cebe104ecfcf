"""Layers on disk: where a sandbox's writes go, kept until someone discards them. More than 600
lines, as making, finding, sweeping and removing one rest on the same few files and locks.

A layer is a folder of its own below the layer root: ``layer.json`` (what it is; locked while its
sandbox lives), ``N.upper`` and ``N.work`` for each target, ``home.*`` for the throw-away home. The
root lies outside of every target (the kernel refuses overlapping layers), is private to the user,
and is covered inside sandboxes.

A layer counts once ``layer.json`` has its text. One that is filled before anything runs over it, by
a copy or from an archive, gets the text at the end; until then the text lies in ``filling``, and if
its maker dies it is swept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from podbot.errors import Kind, LaunchError, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox.layers import _place, closed
from podbot.sandbox.layers._place import ROOT_VARIABLE as ROOT_VARIABLE

META = "layer.json"
HIDDEN = "hidden.json"
FILLING = "filling"
DISCARDED = "discarded"
TRASH = ".trash-"


@dataclass(frozen=True, slots=True)
class Traits:
    """What may be otherwise in a layer that a container engine mounts.

    ``marks``: the kind of attribute overlay marks folders with, ``user``, or ``trusted`` when the
    engine is root. ``nobody``: the id that owns all of a copy, in place of those who own it on the
    host; what is in the layer then belongs to whom it belongs there.
    """

    marks: str = "user"
    nobody: int | None = None


ORDINARY = Traits()


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. ``targets`` are the folders it lies over, in the order of its parts.

    ``since_ns`` is when it was begun, before anything could run over it, and ``clock`` the boot
    and the time since boot at that moment. ``hidden`` are the paths in its targets that the policy
    hid.
    """

    path: Path
    targets: tuple[str, ...]
    created: float
    owner: int
    method: str
    since_ns: int = 0
    clock: tuple[str, int] = ("", 0)
    hidden: tuple[str, ...] = ()
    traits: Traits = ORDINARY

    @property
    def id(self) -> str:
        """Its name, unique on this machine."""
        return self.path.name

    def upper(self, index: int) -> Path:
        """Where the changes to one target are."""
        return self.path / f"{index}.upper"

    def baseline(self, index: int) -> Path:
        """Where the manifest of a target's copy is, in a layer that is one."""
        return self.path / f"{index}.base"

    @property
    def live(self) -> bool:
        """Whether a sandbox uses it now."""
        try:
            with _locked(self.path / META):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def empty(self) -> bool:
        """Whether nothing was written to any target."""
        if self.method != "overlay":
            return False
        for index, target in enumerate(self.targets):
            try:
                with os.scandir(self.upper(index)) as entries:
                    if next(entries, None) is not None:
                        return False
                if os.stat(self.upper(index)).st_mode != os.stat(target).st_mode:
                    return False  # the folder itself was changed
            except FileNotFoundError:
                continue
            except PermissionError:
                return False  # closed from inside: whoever looks at the changes will open it
        return True

    def discard(self) -> None:
        """Remove it for good, and all that is known of its run.

        What was applied from it stays applied, and can then no longer be undone. Refused while its
        sandbox lives (kind ``invalid``).
        """
        from podbot.sandbox import bookkeeping

        if bookkeeping.knows(self.id):
            bookkeeping.discard(self.id, self)
        else:
            remove(self.put_away())

    def put_away(self) -> Path:
        """Take it out of sight to be discarded; gives where it waits to be removed.

        Refused while its sandbox lives. If its remover dies, `put_away_before` tells of it.
        """
        if self.live:
            raise SandboxError(
                f"layer {self.id} is in use",
                kind=Kind.INVALID,
                remedy="close its sandbox first",
            )
        with contextlib.suppress(OSError):  # a full disk must not keep anyone from making room
            (self.path / DISCARDED).touch(mode=0o600)
        return throw_away(self.path)

    def drop_scratch(self) -> None:
        """Remove what is not part of the changes: the home's layer and work folders."""
        for entry in os.listdir(self.path):
            if entry.startswith("home.") or entry.endswith(".work") or entry == FILLING:
                remove(self.path / entry)


def root() -> Path:
    """The folder that holds this user's layers; made, and checked to be ours alone.

    ``$PODBOT_LAYERS``, else ``/var/lib/podbot/layers`` for root, else ``/var/tmp/podbot-UID``:
    outside of every home, because a layer may not lie below what it covers. Where a stranger has
    taken the last one, another beside it, which the state folder remembers.
    """
    return _place.checked(os.environ.get(ROOT_VARIABLE), os.getuid())


def place() -> Path:
    """Where the layer folder is, whether or not it exists."""
    return _place.chosen(os.environ.get(ROOT_VARIABLE), os.getuid())


def told() -> str:
    """How messages name the layer folder: as the user did, or else by its path."""
    name = os.environ.get(ROOT_VARIABLE)
    return f"{ROOT_VARIABLE}={name}" if name else f"the layer folder {place()}"


def outside_of(folder: str) -> str:
    """What to do about layers that lie in a folder which is overlaid."""
    return (
        f"set {ROOT_VARIABLE} to a folder of yours outside of {folder}, on a local disk, "
        "mode 0700, such as one below /var/lib or on another disk"
    )


def create(
    targets: tuple[str, ...],
    method: str,
    home: bool,
    hidden: tuple[str, ...] = (),
    traits: Traits = ORDINARY,
    *,
    filling: bool = False,
) -> tuple[Layer, int]:
    """A new layer and its lock, which marks it as live until the descriptor is closed.

    One for ``filling`` counts as a layer only once it was completed (see `complete`).
    """
    now = time.time_ns()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 10**9))
    path = root() / f"{stamp}-{os.urandom(4).hex()}"
    clock = (boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    inside = tuple(h for h in hidden if any(f"{h}/".startswith(f"{t}/") for t in targets))
    layer = Layer(path, targets, now / 1e9, os.getpid(), method, now, clock, inside, traits)
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:  # someone removed the root since it was checked
            _place.checked.cache_clear()
            os.mkdir(root() / path.name, 0o700)
        # Empty until all the rest is there: without its text a layer does not count as whole.
        base = os.fspath(path)
        lock = os.open(f"{base}/{META}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for index, target in enumerate(targets):
                if method != "copy":
                    os.mkdir(f"{base}/{index}.work", 0o700)
                _make_upper(f"{base}/{index}.upper", target)
            if home:
                os.mkdir(f"{base}/home.work", 0o700)
                os.mkdir(f"{base}/home.upper", 0o700)
            meta = {
                "version": 1, "targets": list(targets), "created": layer.created,
                "owner": layer.owner, "method": method,
                "since_ns": now, "clock": clock, "hidden": inside,
            }  # fmt: skip
            if traits != ORDINARY:
                meta |= {"marks": traits.marks, "nobody": traits.nobody}
            text = json.dumps(meta).encode("ascii")
            if filling:
                draft = os.open(
                    f"{base}/{FILLING}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
                try:
                    os.write(draft, text)
                finally:
                    os.close(draft)
            else:
                os.write(lock, text)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        unmake(path, len(targets))
        raise LaunchError(
            f"a layer cannot be made in {path.parent}: {error.strerror}",
            kind=_KINDS.get(error.errno or 0, Kind.LAYER_FAILED),
            remedy=f"free some space or descriptors, or set {ROOT_VARIABLE} to another disk",
        ) from None
    return layer, lock


def complete(layer: Layer, lock: int, *, durable: bool = False) -> None:
    """A layer made for filling is full: from here on it counts.

    ``durable``: it is on the disk before it counts, and still is after a power cut.
    """
    draft = layer.path / FILLING
    text = draft.read_bytes()
    if durable:
        from podbot import kernel

        kernel.sync_file_system(lock)
    os.pwrite(lock, text, 0)
    if durable:
        os.fsync(lock)
    os.unlink(draft)


def _make_upper(upper: str, target: str) -> None:
    """The folder that stands for the target itself inside: with its mode, time and attributes."""
    facts = os.stat(target)
    mode = stat.S_IMODE(facts.st_mode)
    os.mkdir(upper, mode)
    if stat.S_IMODE(os.stat(upper).st_mode) != mode:
        os.chmod(upper, mode)  # the umask took something away
    with contextlib.suppress(OSError):  # a file system without attributes
        for name in os.listxattr(target):
            if name.startswith("user.") and not name.startswith("user.overlay."):
                os.setxattr(upper, name, os.getxattr(target, name))
    os.utime(upper, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Which boot of the machine this is; clocks since boot compare only within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def hold(layer: Layer) -> int:
    """Take hold of a kept layer, with everything in it as its sandbox left it; gives its lock.

    Refused while a sandbox uses it (kind ``in_use``).
    """
    try:
        lock = os.open(layer.path / META, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise LaunchError(
            f"layer {layer.id} cannot be opened: {error.strerror}",
            kind=Kind.LAYER_FAILED,
            remedy="`podbot changes list` says which are there",
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(
                f"layer {layer.id} is in use", kind=Kind.IN_USE, remedy="close its sandbox first"
            ) from None
        closed.shut(layer.path)
    except BaseException:
        os.close(lock)
        raise
    return lock


def stand_on(layer: Layer, below: Layer) -> None:
    """Have the folders that stand for the targets themselves look as another layer left them."""
    for index in range(len(layer.targets)):
        os.rmdir(layer.upper(index))
        _make_upper(os.fspath(layer.upper(index)), os.fspath(below.upper(index)))


def reopen(layer: Layer, home: bool, hidden: tuple[str, ...]) -> int:
    """Make a kept layer ready for another sandbox; gives its lock.

    Refused while a sandbox uses it (kind ``in_use``). What this policy hides counts as hidden in
    the layer from now on, besides what did before.
    """
    lock = hold(layer)
    try:
        layer.drop_scratch()
        for index in range(len(layer.targets)):
            if layer.method != "copy":
                os.mkdir(layer.path / f"{index}.work", 0o700)
        if home:
            os.mkdir(layer.path / "home.work", 0o700)
            os.mkdir(layer.path / "home.upper", 0o700)
        inside = {h for h in hidden if any(f"{h}/".startswith(f"{t}/") for t in layer.targets)}
        if not inside <= set(layer.hidden):
            draft = layer.path / f"{HIDDEN}.new"
            draft.write_text(json.dumps(sorted(inside | set(layer.hidden))), encoding="ascii")
            os.rename(draft, layer.path / HIDDEN)
    except BaseException:
        os.close(lock)
        raise
    return lock


_KINDS = {
    errno.ENOSPC: Kind.DISK_FULL,
    errno.EDQUOT: Kind.DISK_FULL,
    errno.EMFILE: Kind.OUT_OF_DESCRIPTORS,
    errno.ENFILE: Kind.OUT_OF_DESCRIPTORS,
}


def found() -> list[Layer]:
    """Every whole layer of this user, oldest first, live ones too."""
    layers = []
    for entry in _entries():
        if entry.name.startswith(TRASH):
            continue  # thrown away, and about to be removed
        try:
            layers.append(_read(entry))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # half-made, a template, or not ours: `sweep` looks at those
    return layers


def get(name: str) -> Layer | None:
    """The layer of this name, if there is a whole one."""
    if not _NAME.fullmatch(name):
        return None
    try:
        return _read(place() / name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _read(path: Path) -> Layer:
    meta = json.loads((path / META).read_bytes())
    boot, since_boot = meta.get("clock", ("", 0))
    hidden = meta.get("hidden", [])
    with contextlib.suppress(FileNotFoundError):
        hidden = json.loads((path / HIDDEN).read_bytes())
    return Layer(
        path,
        tuple(meta["targets"]),
        float(meta["created"]),
        int(meta["owner"]),
        str(meta["method"]),
        int(meta.get("since_ns", float(meta["created"]) * 1e9)),
        (str(boot), int(since_boot)),
        tuple(map(str, hidden)),
        _traits(meta) if "marks" in meta else ORDINARY,
    )


def _traits(meta: dict[str, object]) -> Traits:
    marks, nobody = meta["marks"], meta.get("nobody")
    if marks not in ("user", "trusted") or not (nobody is None or isinstance(nobody, int)):
        raise ValueError("not a layer of ours")
    return Traits(str(marks), nobody)


@dataclass(frozen=True, slots=True)
class SweptLayers:
    """What a sweep did: layers removed, kept because they hold changes, and still in use."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]
    live: tuple[str, ...]


HALF_MADE_AGE = 60.0


def sweep(dry_run: bool = False) -> SweptLayers:
    """Remove what dead sandboxes left that holds no change: never a live one, never a change.

    Half-made layers go once they are a minute old and nobody holds their lock.
    """
    removed, kept, live = [], [], []
    whole = {layer.id: layer for layer in found()}
    for entry in _entries():
        layer = whole.get(entry.name)
        if layer is None:
            if not _is_abandoned(entry):
                continue
            if _holds_something(entry):  # damaged, as by a power failure: not ours to throw away
                kept.append(entry.name)
                continue
            removed.append(entry.name)
            if not dry_run:
                scrap(entry)
        elif layer.live:
            live.append(layer.id)
        elif layer.empty:
            removed.append(layer.id)
            if not dry_run:
                scrap(entry)
        else:
            kept.append(layer.id)
            if not dry_run:
                layer.drop_scratch()
    return SweptLayers(tuple(removed), tuple(kept), tuple(live))


_NAME = re.compile(rf"(?:{re.escape(TRASH)})?\d{{8}}-\d{{6}}-[0-9a-f]{{8}}")


def _entries() -> list[Path]:
    """What podbot made in the layer folder. Whatever else lies there is none of our business."""
    if not os.path.lexists(place()):
        return []
    return sorted(
        entry
        for entry in root().iterdir()
        if _NAME.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
    )


def sweep_half_filled() -> tuple[str, ...]:
    """Remove what is left of layers whose maker died while they were being filled."""
    found = tuple(entry for entry in _entries() if _was_being_filled(entry))
    for entry in found:
        scrap(entry)
    return tuple(entry.name for entry in found)


def _was_being_filled(entry: Path) -> bool:
    """Whether nobody fills it any more, and it never came to count."""
    try:
        if not (entry / FILLING).exists() or entry.name.startswith(TRASH):
            return False
        with _locked(entry / META):
            return os.path.getsize(entry / META) == 0
    except OSError:
        return False


def _is_abandoned(entry: Path) -> bool:
    if entry.name.startswith(TRASH) or _was_being_filled(entry):
        return True
    try:
        if time.time() - os.lstat(entry).st_mtime < HALF_MADE_AGE:
            return False
        with _locked(entry / META):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _holds_something(entry: Path) -> bool:
    """Whether something was written to a target in a layer that does not say what it is."""
    if entry.name.startswith(TRASH) or _was_being_filled(entry):
        return False
    for part in entry.iterdir():
        if part.suffix == ".upper" and part.name != "home.upper":
            try:
                if any(part.iterdir()):
                    return True
            except OSError:
                return True
    return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock for a moment; `BlockingIOError` if someone else has it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove a tree of ours, whatever modes overlay or a guest left in it."""
    from podbot.sandbox.guest.trees import remove_tree  # mostly not needed

    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(folder, path.name)
    except FileNotFoundError:
        pass
    except PermissionError:
        if not _removed_by_podman(path):
            raise
    finally:
        os.close(folder)


def _removed_by_podman(path: Path) -> bool:
    """Remove what an overlay of rootless Podman left: some of it belongs to ids that the user has
    from the system, and that only programs like Podman can act as."""
    import shutil
    import subprocess

    podman = shutil.which("podman")
    if os.geteuid() == 0 or podman is None:
        return False
    command = [podman, "unshare", "rm", "-rf", "--", os.fspath(path)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def unmake(path: Path, targets: int) -> None:
    """Remove a layer that nothing was written to: by name, as descriptors may have run out."""
    with contextlib.suppress(OSError):
        os.unlink(path / META)
    parts = [*map(str, range(targets)), "home"]
    for name in (f"{part}.{kind}" for part in parts for kind in ("upper", "work")):
        with contextlib.suppress(OSError):
            os.rmdir(path / name)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError:
        remove(path)


def scrap(path: Path) -> None:
    """Remove a layer, which is out of sight before the first of it goes: nobody takes what a kill
    leaves of it for whole."""
    remove(path if path.name.startswith(TRASH) else throw_away(path))


def put_away_before() -> dict[str, Path]:
    """What is left of layers whose discarding was cut short, by the id they had."""
    return {
        entry.name.removeprefix(TRASH): entry
        for entry in _entries()
        if entry.name.startswith(TRASH) and (entry / DISCARDED).exists()
    }


def throw_away(path: Path) -> Path:
    """Take a layer out of sight at once; gives where it waits to be removed."""
    trash = path.parent / f"{TRASH}{path.name}"
    with contextlib.suppress(FileNotFoundError):  # a sweep found it first: nobody lived in it
        os.rename(path, trash)
    return trash
