"""Which members an archive has, as it follows from its manifest.

Saving writes exactly these members in exactly this order, and loading takes nothing else, so that
nothing can be there twice, be missing, or be slipped in. Entries that contradict each other are an
error. Nothing here touches a file system.
"""

from __future__ import annotations

from collections.abc import Iterator

from podbot.changes.archive._manifest import FOLDER, TIME, ArchiveLimits, Entry, Manifest
from podbot.changes.archive._tar import Member, MemberType, bad
from podbot.changes.model import ChangeKind, FileType
from podbot.frozen import dataclass

_TYPES = {
    FileType.FILE: MemberType.FILE,
    FileType.FOLDER: MemberType.FOLDER,
    FileType.LINK: MemberType.LINK,
    FileType.FIFO: MemberType.FIFO,
}


@dataclass(frozen=True, slots=True)
class Step:
    """What to put where; no member for a socket, which no archive holds. No entry: a deletion."""

    target: int
    path: str
    member: Member | None
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, and the folders on the way that are no change, outermost first."""

    steps: tuple[Step, ...]
    folders: tuple[tuple[int, str], ...]


def planned(manifest: Manifest, limits: ArchiveLimits) -> Plan:
    """What members there must be. Raises `ChangesError` where entries contradict each other."""
    steps: list[Step] = []
    links: list[Step] = []
    folders: list[tuple[int, str]] = []
    for target in range(len(manifest.targets)):
        part = _Part(manifest, target, limits)
        for step in part.steps():
            is_link = step.member is not None and step.member.type is MemberType.HARD_LINK
            (links if is_link else steps).append(step)
        folders += [(target, path) for path in sorted(part.between, key=in_order)]
    total = sum(step.member.size for step in steps if step.member is not None)
    if total > limits.bytes:
        raise bad(f"it holds {total} bytes, and {limits.bytes} are allowed")
    return Plan((*steps, *links), tuple(folders))


def in_order(path: str) -> str:
    """Sorts folders before what is in them, and that before their neighbours."""
    return path.replace("/", "\0")


class _Part:
    """The entries of one target: what will be there, and what will be gone."""

    def __init__(self, manifest: Manifest, target: int, limits: ArchiveLimits):
        self._manifest, self._target, self._limits = manifest, target, limits
        self._there: dict[str, Entry] = {}
        self._gone: set[str] = set()
        self._covered: set[str] = set()
        self.between: set[str] = set()
        self._room = limits.manifest
        self._timed: list[str] = []
        for entry in manifest.entries:
            if entry.target == target and entry.kind == TIME:
                self._timed.append(entry.path)
            elif entry.target == target:
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        if entry.path in self._there or (entry.new is None and entry.path in self._gone):
            raise bad("it is there twice", entry.path)
        if entry.new is None:
            self._gone.add(entry.path)
            return
        if not self._manifest.numbered and f"{entry.path}/".startswith(f"{FOLDER}/"):
            raise bad("it has the name of the manifest's own folder", entry.path)
        self._there[entry.path] = entry
        if entry.kind == ChangeKind.RENAMED and entry.source is not None:
            self._gone.add(entry.source)

    def steps(self) -> Iterator[Step]:
        """Everything to be put into place, folders before what is in them."""
        found = [self._present(path, entry) for path, entry in self._there.items()]
        for path in self._timed:
            if path in self._there or path in self._gone or self._is_covered(path):
                raise bad("it is not a folder, and has the time of one", path)
            if path:
                self.between.add(path)
        for path in sorted(self._gone - self._there.keys(), key=in_order):
            if not self._is_covered(path, gone=True):
                name = self._manifest.name(self._target, path)
                member = Member(name, MemberType.WHITEOUT)
                found.append(Step(self._target, path, member, None))
        return iter(sorted(found, key=lambda step: in_order(step.path)))

    def _present(self, path: str, entry: Entry) -> Step:
        if self._is_covered(path):
            raise bad("it lies below something that is not a folder", path)
        new = entry.new
        assert new is not None  # noqa: S101 - only such entries are taken as there
        if new.type is FileType.SOCKET:
            return Step(self._target, path, None, entry)
        type, size, link = _TYPES[new.type], new.size, new.link or ""
        if entry.kind == ChangeKind.HARD_LINK:
            type, size, link = MemberType.HARD_LINK, 0, self._linked(entry)
        member = Member(
            self._manifest.name(self._target, path),
            type,
            new.mode,
            new.uid,
            new.gid,
            size if type is MemberType.FILE else 0,
            new.mtime_ns,
            link,
        )
        return Step(self._target, path, member, entry)

    def _linked(self, entry: Entry) -> str:
        other = self._there.get(entry.source or "")
        if (
            other is None or other.new is None or other.new.type is not FileType.FILE
            or other.kind == ChangeKind.HARD_LINK
        ):  # fmt: skip
            raise bad("it is another name for a file that is not in the archive", entry.path)
        return self._manifest.name(self._target, other.path)

    def _is_covered(self, path: str, gone: bool = False) -> bool:
        """Whether something above is gone or no folder; else what is above needs folders.

        Nothing from before shows in an opaque folder, so what is gone needs no mark in it; the
        overlay would even list such marks.
        """
        walked: list[str] = []
        above = path
        while above:
            above = above.rpartition("/")[0]
            entry = self._there.get(above)
            if above in self._covered or (above in self._gone and entry is None):
                break
            if entry is not None and entry.new is not None:
                if entry.new.type is not FileType.FOLDER or (gone and entry.new.opaque):
                    break
                self._note(self.between, walked)
                return False
            if above in self.between or not above:
                self._note(self.between, walked)
                return False
            walked.append(above)
        else:
            return False
        self._note(self._covered, walked)
        return True

    def _note(self, where: set[str], walked: list[str]) -> None:
        # A few long paths can have very many folders above them: those count like entries.
        self._room -= sum(map(len, walked))
        where.update(walked)
        if self._room < 0 or len(where) > self._limits.members:
            raise bad("its paths are too deep")
