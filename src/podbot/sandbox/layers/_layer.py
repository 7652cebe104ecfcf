"""One layer: made, filled, held, found again. Its files are its truth; nothing else is kept."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
import time
from functools import lru_cache
from pathlib import Path

from podbot.errors import Kind, LaunchError, SandboxError
from podbot.frozen import dataclass
from podbot.json_fields import Fields, parsed
from podbot.sandbox.layers import closed, first_index
from podbot.sandbox.layers._files import DISCARDED, FILLING, HIDDEN, META, NAME, TRASH, locked
from podbot.sandbox.layers._removing import remove, throw_away, unmake
from podbot.sandbox.layers._root import ROOT_VARIABLE, checked_root, entries, place, root

MAX_TITLE = 200
"""Characters of a title."""


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
    hid. ``title`` is what its maker calls the work, ``program`` the one that made it: so it can be
    told from others even if nothing else was noted before that was killed.
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
    title: str | None = None
    program: str = ""

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

    def first_index(self, target: str) -> str | None:
        """Where git's index of a target is kept as the sandbox found it, if it is."""
        if target not in self.targets:
            return None
        return first_index.file(self.path, self.targets.index(target))

    @property
    def throw_away_home(self) -> Path:
        """Where what is written to the home outside of the targets is, while a sandbox lives."""
        return self.path / "home.upper"

    @property
    def live(self) -> bool:
        """Whether a sandbox uses it now."""
        try:
            with locked(self.path / META):
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


def create(
    targets: tuple[str, ...],
    method: str,
    home: bool,
    hidden: tuple[str, ...] = (),
    traits: Traits = ORDINARY,
    *,
    filling: bool = False,
    title: str | None = None,
) -> tuple[Layer, int]:
    """A new layer and its lock, which marks it as live until the descriptor is closed.

    One for ``filling`` counts as a layer only once it was completed (see `complete`).
    """
    now = time.time_ns()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 10**9))
    path = root() / f"{stamp}-{os.urandom(4).hex()}"
    clock = (boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    inside = tuple(h for h in hidden if any(f"{h}/".startswith(f"{t}/") for t in targets))
    layer = Layer(
        path, targets, now / 1e9, os.getpid(), method, now, clock, inside, traits,
        title, program(),
    )  # fmt: skip
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:  # someone removed the root since it was checked
            checked_root.cache_clear()
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
                if _begins_from_host(method, filling) and not _hides_index(target, inside):
                    first_index.keep(path, index, target)
            if home:
                os.mkdir(f"{base}/home.work", 0o700)
                os.mkdir(f"{base}/home.upper", 0o700)
            meta = {
                "version": 1, "targets": list(targets), "created": layer.created,
                "owner": layer.owner, "method": method,
                "since_ns": now, "clock": clock, "hidden": inside,
                "title": title, "program": layer.program,
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


def _begins_from_host(method: str, filling: bool) -> bool:
    """Whether a sandbox begins with what the host has: not over a layer or with an archive."""
    return method == "copy" or (method == "overlay" and not filling)


def _hides_index(target: str, hidden: tuple[str, ...]) -> bool:
    return any(f"{target}/{first_index.PATH}/".startswith(f"{path}/") for path in hidden)


def program() -> str:
    """What people call the program we are in."""
    folder, _, name = sys.argv[0].rpartition("/") if sys.argv else ("", "", "")
    if name == "__main__.py":  # of ``python -m package``
        name = folder.rpartition("/")[2]
    return "python" if name in ("", "-c", "-m", "-") else name[:MAX_TITLE]


def check_title(title: object) -> None:
    """Refuse what cannot stand in a list as the title of some work."""
    if title is not None and not (isinstance(title, str) and 0 < len(title.strip()) <= MAX_TITLE):
        raise LaunchError(
            f"{title!r:.80} cannot be the title of a sandbox",
            kind=Kind.INVALID,
            remedy=f"pass a text of 1 to {MAX_TITLE} characters, or none",
        )


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
    for entry in entries():
        if entry.name.startswith(TRASH):
            continue  # thrown away, and about to be removed
        try:
            layers.append(_read(entry))
        except (OSError, ValueError):
            continue  # half-made, a template, or not ours: `sweep` looks at those
    return layers


def get(name: str) -> Layer | None:
    """The layer of this name, if there is a whole one."""
    if not NAME.fullmatch(name):
        return None
    try:
        return _read(place() / name)
    except (OSError, ValueError):
        return None


def _read(path: Path) -> Layer:
    meta = hiding = Fields(parsed((path / META).read_bytes()))
    with contextlib.suppress(FileNotFoundError):
        hiding = Fields({"hidden": parsed((path / HIDDEN).read_bytes())})
    created, (boot, since_boot) = meta.seconds("created"), meta.items("clock", ["", 0])
    return Layer(
        path,
        meta.texts("targets"),
        created,
        meta.number("owner"),
        meta.text("method"),
        meta.number("since_ns") if meta.has("since_ns") else int(created * 1e9),
        (str(boot), int(str(since_boot))),
        hiding.texts("hidden", []),
        _traits(meta),
        meta.optional_text("title"),
        meta.text("program", ""),
    )


def _traits(meta: Fields) -> Traits:
    marks = meta.text("marks", ORDINARY.marks)
    if marks not in ("user", "trusted"):
        raise ValueError("not a layer of ours")
    return Traits(marks, meta.optional_number("nobody"))
