"""Random trees and random work in real sandboxes, applied and undone.

What was seen inside, and the host after apply and after undo, must agree bit for bit, without one
conflict that is none; and `git apply` must take the patch and lose nothing that is not told.

    python tests/changes/fuzz.py --cases 200 --seed any-word [--far] [--only N] [--keep]

Each case is made from the seed and its number alone, so a failing one can be repeated with
``--only``. Nothing random is ever done on the host: trees are planted entry by entry into an empty
folder, and the steps run inside. ``--far`` has the target and podbot's own folders on two file
systems, one of them mounted in a namespace of this program's own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from podbot.changes import conflicts, not_in_patch, undo_changes
from podbot.changes._renames import detect
from podbot.changes.applying.apply import apply
from podbot.changes.capture import capture
from podbot.changes.diffs.patch import patch
from podbot.changes.diffs.text import shown_name
from podbot.changes.drift import ConflictKind
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers
from podbot.sandbox.overlay.launcher import OverlaySandbox

PYTHON = os.path.realpath(sys.executable)
FAR = "PODBOT_FUZZ_FAR"
"""Names the folder of the other file system, once it is mounted."""
OPEN = "PODBOT_FUZZ_OPEN"
"""Set where nothing is to be closed to its owner."""
CLOSED = "PODBOT_FUZZ_CLOSED"
"""Set where much is to be closed to its owner."""
WITHOUT_PATCH = "PODBOT_FUZZ_WITHOUT_PATCH"
"""Set where `git apply` is not to be tried."""

NAMES = [
    "a", "b", "c", "data", "main.py", "README.md", "x y", "-rf", "ü", "n\nl", "q'\"", "\udcff",
    "l" * 255, "A", "Data", "trail ", "*", "$HOME", "a\\b", ".hid", "index.js", "~", "%s",
]  # fmt: skip
FOLDER_COUNTS = (1, 4, 12, 63, 64, 65, 66, 130)
MODES = [0o644, 0o600, 0o755, 0o700, 0o444, 0o4755, 0o000]
FOLDER_MODES = [0o755, 0o700, 0o2755, 0o2700, 0o1777, 0o3770, 0o500, 0o000, 0o644, 0o333]
TEXTS = ["", "one\n", "two\nlines\n", "no end", "x" * 5000, "".join(f"{n}\n" for n in range(400))]

VERBS = {
    "write": 3, "append": 2, "hole": 1, "again": 1, "remove": 2, "folder": 1, "link": 1, "name": 2,
    "move": 4, "rename": 2, "case": 1, "swap": 1, "become": 3, "copy": 1, "mode": 2, "time": 1,
    "note": 1, "unnote": 1, "pipe": 1, "socket": 1,
}  # fmt: skip

Steps = list[list[Any]]

# Does to the tree what it is told, then tells what is there. Runs inside.
PROGRAM = r"""
import json, os, shutil, socket, stat, sys

def do(verb, path, more):
    above = os.path.dirname(path)
    if verb in ("write", "append", "hole") and not isinstance(more, int):
        os.makedirs(above or ".", exist_ok=True)
    if verb in ("write", "append", "hole", "again"):  # a pipe would wait for its other end
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode): return
    if verb == "write":
        with open(path, "w") as file: file.write(more)
    elif verb == "append":
        with open(path, "a") as file: file.write(more)
    elif verb == "hole":
        with open(path, "ab") as file: file.truncate(more)
    elif verb == "again":  # written anew with the same bytes, as tools do that save
        with open(path, "rb") as file: data = file.read()
        with open(path + "~", "wb") as file: file.write(data)
        os.rename(path + "~", path)
    elif verb == "remove":
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    elif verb == "folder": os.makedirs(path)
    elif verb == "link":
        os.makedirs(above or ".", exist_ok=True); os.symlink(more, path)
    elif verb == "name": os.link(more, path, follow_symlinks=False)
    elif verb == "move":
        os.makedirs(above or ".", exist_ok=True); shutil.move(more, path)
    elif verb == "rename": os.rename(more, path)
    elif verb == "swap":
        shutil.move(path, path + ".s"); shutil.move(more, path); shutil.move(path + ".s", more)
    elif verb == "become":  # another type in its place
        try: do("remove", path, None)
        except OSError: pass
        do(*more)
    elif verb == "copy":
        # A folder copied into itself, by way of a link too, ends in names too long to look at.
        into, what = os.path.realpath(path), os.path.realpath(more)
        if f"{into}/".startswith(f"{what.rstrip('/')}/"): return
        shutil.copytree(more, path, symlinks=True)
    elif verb == "mode" and not os.path.islink(path): os.chmod(path, more)
    elif verb == "time": os.utime(path, ns=(more, more), follow_symlinks=False)
    elif verb == "note" and not os.path.islink(path): os.setxattr(path, "user.note", more.encode())
    elif verb == "unnote" and not os.path.islink(path): os.removexattr(path, "user.note")
    elif verb == "pipe": os.mkfifo(path)
    elif verb == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            here = os.getcwd(); os.chdir(above or ".")
            try: made.bind(os.path.basename(path))
            finally: os.chdir(here)

@LOOK@

os.umask(0o022)
for verb, path, more in json.loads(sys.stdin.read()):
    try: do(verb, path, more)
    except (OSError, shutil.Error, ValueError): pass  # steps are random: many make no sense
try: found = look(".")
except FileNotFoundError: found = look(".")  # an overlay may list a name once more that just went
print(json.dumps(found))
"""

LOOK = r"""
def look(folder):
    import hashlib, os, stat
    found, files = {}, {}
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        facts = os.lstat(path)
        name = os.path.relpath(path, folder)
        mode = facts.st_mode
        row = [stat.S_IFMT(mode), stat.S_IMODE(mode), facts.st_uid, facts.st_gid, facts.st_mtime_ns]
        try:
            if stat.S_ISREG(mode):
                files.setdefault(facts.st_ino, []).append(name)
                with open(path, "rb") as file: row.append(hashlib.sha256(file.read()).hexdigest())
            elif stat.S_ISLNK(mode): row.append(os.readlink(path))
            elif stat.S_ISDIR(mode):
                entries = [os.path.join(path, entry) for entry in os.listdir(path)]
                for entry in entries: os.lstat(entry)  # a folder may tell names and no more
                waiting += entries
            if not stat.S_ISLNK(mode):
                names = [x for x in os.listxattr(path) if x == "user.note"]
                row.append([os.getxattr(path, x).hex() for x in names])
        except PermissionError:
            row.append("closed")
        found[name] = row
    same = sorted(sorted(names) for names in files.values() if len(names) > 1)
    return {"found": found, "same": same}
"""

_space: dict[str, Any] = {}
exec(LOOK, _space)  # noqa: S102 - the same text looks inside and here
look = _space["look"]


# A case


def _only_open() -> bool:
    """Whether to leave out what its owner may not read, list or enter."""
    return OPEN in os.environ


class Case:
    """The tree before and the steps inside, made from a seed."""

    def __init__(self, seed: str):
        self.random = random.Random(seed)
        self.modes = [mode for mode in FOLDER_MODES if not _only_open() or mode & 0o500 == 0o500]
        self.any_mode = [mode for mode in MODES if mode & 0o500 == 0o500 or not _only_open()]
        self.file_modes = [mode for mode in MODES if mode & 0o400 or not _only_open()]
        self.often = 0.5 if CLOSED in os.environ else 0.15
        if CLOSED in os.environ:
            self.modes = [mode for mode in self.modes if mode & 0o500 != 0o500] + [0o755]
        self.folders = [""]
        self.entries: list[tuple[str, str, Any]] = []  # what, path, more
        self._plan()
        self.steps: Steps = [self._step() for _ in range(self.random.randint(1, 25))]
        if CLOSED in os.environ:  # whoever works inside lets himself in, here and there
            opened = [folder for folder in self.folders if self.random.random() < 0.7]
            self.steps[:0] = [["mode", folder or ".", 0o755] for folder in opened]

    def _name(self) -> str:
        draw = self.random
        return draw.choice(NAMES) if draw.random() < 0.5 else f"f{draw.randrange(200)}"

    def _path(self) -> str:
        folder = self.random.choice(self.folders)
        return f"{folder}/{self._name()}" if folder else self._name()

    def _plan(self) -> None:
        draw = self.random
        taken = {""}
        for _ in range(draw.choice(FOLDER_COUNTS)):
            path = self._path()
            if path not in taken and len(path) < 1500:
                taken.add(path)
                self.folders.append(path)
                self.entries.append(("folder", path, None))
        files: list[str] = []
        for _ in range(draw.choice((3, 10, 40, 160))):
            path = self._path()
            if path in taken:
                continue
            taken.add(path)
            kind = draw.choices(
                ["file", "name", "link", "pipe", "socket"], [60, 20, 12, 4, 4]
            )[0]  # fmt: skip
            if kind == "name" and not files:
                kind = "file"
            if kind == "file":
                files.append(path)
                self.entries.append((kind, path, draw.choice(TEXTS)))
            elif kind == "name":
                self.entries.append((kind, path, draw.choice(files)))
            elif kind == "link":
                self.entries.append((kind, path, self._aim()))
            else:
                self.entries.append((kind, path, None))
        for what, path, _ in list(self.entries):
            if what == "link":
                continue
            if draw.random() < self.often:
                modes = self.modes if what == "folder" else self.file_modes
                self.entries.append(("mode", path, draw.choice(modes)))
            if draw.random() < 0.05 and what in ("file", "folder"):
                self.entries.append(("note", path, draw.choice(["", "yy"])))
            if draw.random() < 0.3:
                self.entries.append(("time", path, draw.randrange(2**31 * 10**9)))

    def _aim(self) -> str:
        return self.random.choice(
            ["a", "..", "../..", "/etc/passwd", "nowhere", "data", *self.folders[1:4]]
        )

    def _known(self) -> str:
        draw = self.random
        if self.entries and draw.random() < 0.75:
            return draw.choice(self.entries)[1]
        return self._path()

    def _step(self) -> list[Any]:
        draw = self.random
        verb = draw.choices([*VERBS], [*VERBS.values()])[0]
        known, path = self._known(), self._path()
        fresh = f"{self._path()}/{draw.choice(['new', 'src', 'n e w'])}/{self._name()}"
        if verb == "write":
            return [verb, draw.choice([known, path, fresh]), draw.choice(TEXTS)]
        if verb == "append":
            return [verb, known, "more\n"]
        if verb == "hole":
            return [verb, known, draw.choice([0, 3, 100_000])]
        if verb in ("again", "remove", "unnote"):
            return [verb, known, None]
        if verb in ("folder", "pipe", "socket"):
            return [verb, draw.choice([path, fresh]) if verb == "folder" else path, None]
        if verb == "link":
            return [verb, draw.choice([path, fresh]), self._aim()]
        if verb in ("name", "copy", "swap", "rename"):
            return [verb, draw.choice([path, self._known()]), known]
        if verb == "move":
            return ["move", draw.choice([path, fresh]), known]
        if verb == "case":
            above, _, name = known.rpartition("/")
            return ["rename", f"{above}/{name.swapcase()}" if above else name.swapcase(), known]
        if verb == "become":
            inner = draw.choice([
                ["write", f"{known}/{draw.choice(['in', 'deep/er'])}", "t\n"],
                ["write", known, "was another\n"],
                ["link", known, self._aim()],
                ["folder", f"{known}/sub", None],
                ["pipe", known, None],
                ["socket", known, None],
            ])  # fmt: skip
            return [verb, known, inner]
        if verb == "mode":
            return [verb, known, draw.choice(self.any_mode + self.modes)]
        if verb == "time":
            return [verb, known, draw.randrange(2**31 * 10**9)]
        return ["note", known, draw.choice(["", "x", "yy"])]

    def plant(self, top: Path) -> set[str]:
        """Make the tree in an empty folder, entry by entry; nothing is followed, all is new.

        Gives all that was made, whether or not it can be seen afterwards.
        """
        order = {"folder": 0, "file": 1, "name": 2, "pipe": 3, "socket": 3, "link": 4}
        things = [entry for entry in self.entries if entry[0] in order]
        facts = [entry for entry in self.entries if entry[0] not in order]
        for what, path, more in sorted(things, key=lambda entry: (order[entry[0]], entry[1])):
            place = os.path.join(top, path)
            with suppress(OSError):  # too long a name, most often: then it is not there
                self._make(what, place, top, more)
        made = {path for _, path, _ in things if os.path.lexists(os.path.join(top, path))}
        # Modes from the inside out, or a closed folder would keep us from the rest.
        rank = {"note": 0, "mode": 2, "time": 1}
        for what, path, more in sorted(facts, key=lambda e: (rank[e[0]], -e[1].count("/"))):
            place = os.path.join(top, path)
            if os.path.islink(place) or not os.path.lexists(place):
                continue
            with suppress(OSError):
                if what == "mode":
                    os.chmod(place, more)
                elif what == "note":
                    os.setxattr(place, "user.note", more.encode())
                else:
                    os.utime(place, ns=(more, more), follow_symlinks=False)
        return made

    @staticmethod
    def _make(what: str, place: str, top: Path, more: Any) -> None:
        if what == "folder":
            os.mkdir(place)
        elif what == "file":
            with open(place, "x") as file:
                file.write(more)
        elif what == "name":
            os.link(os.path.join(top, more), place, follow_symlinks=False)
        elif what == "link":
            os.symlink(more, place)
        elif what == "pipe":
            os.mkfifo(place)
        else:
            os.mknod(place, stat.S_IFSOCK | 0o755)


class WrongError(Exception):
    """What must agree does not."""


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The paths whose rows differ, with both."""
    rows = one["found"], other["found"]
    return [
        f"{name!r}: {rows[0].get(name)} / {rows[1].get(name)}"
        for name in sorted(rows[0].keys() | rows[1].keys())
        if rows[0].get(name) != rows[1].get(name)
    ]


def same(what: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Raise if two looks at the host differ in anything."""
    if one != other:
        names = [] if one["same"] == other["same"] else [f"{one['same']} / {other['same']}"]
        raise WrongError(f"{what}: " + "\n    ".join([*differences(one, other)[:8], *names]))


def as_seen(what: str, host: dict[str, Any], seen: dict[str, Any]) -> None:
    """Raise if the host is not as it was seen inside, by eyes that do not see into closed things.

    An overlay may show two names of one file as two files, so the host may know of more of them.
    """
    known = [set(names) for names in host["same"]]
    for names in seen["same"]:
        if not any(set(names) <= pair for pair in known):
            raise WrongError(f"{what}: {names} were one file inside")
    same(what, {"found": as_open(host, seen), "same": []}, {"found": seen["found"], "same": []})


def as_open(host: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """The rows of the host without what was closed inside."""
    rows = dict(host["found"])
    shut = [name for name, row in seen["found"].items() if row[-1] == "closed"]
    for name in list(rows):
        if any(name.startswith(f"{folder}/") for folder in shut):
            del rows[name]
        elif name in shut:
            rows[name] = [*rows[name][:5], "closed"]
    return rows


def one_case(case: Case, steps: Steps, place: Path) -> str:
    """Run a case; gives what it was about. Raises `WrongError` and whatever podbot raises."""
    target = place / "target"
    target.mkdir()
    made = case.plant(target)
    before = look(str(target))
    with OverlaySandbox(target) as sandbox:
        program = PROGRAM.replace("@LOOK@", LOOK)
        result = sandbox.exec([PYTHON, "-I", "-c", program], stdin=json.dumps(steps), timeout=120)
        if not result.ok:
            raise WrongError(f"inside: {result.exit_code}: {result.stderr[-1000:]}")
        seen = json.loads(result.stdout)["found"], json.loads(result.stdout)["same"]
        layer = sandbox.layer
    inside = {"found": seen[0], "same": seen[1]}
    same("the host was touched", look(str(target)), before)
    if layer is None or not layer.path.exists():
        return "nothing"
    changes = detect(capture(layer))
    check_whole_truth(changes, made, inside)
    if not changes:
        layer.discard()
        return "nothing"
    found = conflicts(changes)
    if os.geteuid() != 0 and any(each.kind is ConflictKind.BLOCKED for each in found):
        # A folder was opened inside that its owner cannot look into on the host: the rest goes.
        if apply(changes, allow_flagged=True, on_conflict="skip").id:
            capture(layer)
            undo_changes(layer.id)
            same("after the undo of a part", look(str(target)), before)
        layer.discard()
        return "closed"
    if found:
        raise WrongError(f"false conflicts: {[(each.path, each.message) for each in found][:5]}")
    if WITHOUT_PATCH not in os.environ:
        check_patch(changes, target, place, inside)
    for turn in ("first", "second"):
        applied = apply(changes, allow_flagged=True)
        if applied.skipped:
            raise WrongError(f"{turn}: skipped: {applied.skipped[:5]}")
        as_seen(f"after the {turn} apply", look(str(target)), inside)
        if left := [change for change in capture(layer) if not is_beyond_us(change)]:
            raise WrongError(f"left to apply after the {turn} time: {left[:3]}")
        if turn == "second":
            save_again(changes, case.random)
        undo_changes(layer.id)
        same(f"after the {turn} undo", look(str(target)), before)
        changes = detect(capture(layer))
    layer.discard()
    return "changed"


def save_again(changes: ChangeSet, draw: random.Random) -> None:
    """Touch some of what was applied, or save it once more: nothing that an undo could lose."""
    for change in changes:
        new = change.new
        if new is None or change.kind is ChangeKind.MODE or new.links > 1 or draw.random() < 0.5:
            continue
        if new.type not in (FileType.FILE, FileType.LINK):
            continue
        if os.geteuid() != 0 and new.mode & 0o400 == 0:
            continue  # nobody can tell what is in it
        with suppress(PermissionError):  # in a folder that was closed to its owner
            if os.lstat(change.where).st_nlink > 1:
                continue
            if new.type is FileType.FILE and new.mode & 0o7600 == 0o600 and new.size < 1 << 20:
                Path(change.where).write_bytes(Path(change.where).read_bytes())
            os.utime(change.where, follow_symlinks=False)


def check_whole_truth(changes: ChangeSet, made: set[str], inside: dict[str, Any]) -> None:
    """All that came and went is told, even of what the host does not let us see.

    Of what was in a folder that nobody can list, or even see, the folder stands for all.
    """
    seen = inside["found"]
    shut = {name for name, row in seen.items() if row[-1] == "closed"}
    come = {change.path for change in changes if change.new is not None}
    gone = {change.path for change in changes if change.new is None}
    gone |= {change.source for change in changes if change.kind is ChangeKind.RENAMED}
    # What comes where the host does not let us see may have taken the place of something.
    come_unseen = {each.path for each in changes if each.new is not None and each.old is None}
    folders = gone | {each.path for each in changes if each.kind is ChangeKind.REPLACED}
    folders |= come_unseen
    for name in made - seen.keys():
        above = folders_above(name)
        if name in gone or not shut.isdisjoint(above):
            continue
        if os.geteuid() == 0 or folders.isdisjoint(above):
            raise WrongError(f"not told: {name!r} went")
    for name in seen.keys() - made - {"."} - come:
        raise WrongError(f"not told: {name!r} came")


def folders_above(name: str) -> set[str]:
    """All folders that a path lies in."""
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def is_beyond_us(change: Change) -> bool:
    """Whether we may not see on the host what became of it: it, or a folder above it, is closed."""
    path = change.path
    while path and os.geteuid() != 0:
        with suppress(OSError):
            facts = os.lstat(f"{change.target}/{path}")
            needed = 0o500 if stat.S_ISDIR(facts.st_mode) else 0o400
            if not stat.S_ISLNK(facts.st_mode) and facts.st_mode & needed != needed:
                return True
        path = path.rpartition("/")[0]
    return False


def check_patch(changes: ChangeSet, target: Path, place: Path, inside: dict[str, Any]) -> None:
    """`git apply` takes the patch, and gives what was seen but for what is told to be lost."""
    try:
        text = b"".join(patch(changes))
    except ChangesError as error:
        if error.kind is Kind.IO and "cannot be read: Permission denied" in error.message:
            return  # a file that its owner may not read
        raise
    if not text:
        return
    copy = place / "copy"  # made before anything is applied: it is the tree the sandbox saw
    done = subprocess.run(["cp", "-a", target, copy], capture_output=True, check=False)
    if done.returncode:
        return  # something closed
    lost = not_in_patch(changes)
    (place / "x.patch").write_bytes(text)
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(place / "x.patch")],
        cwd=copy, capture_output=True, check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(place), "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.decode(errors="replace")[:600]
        if os.geteuid() != 0 and "Permission denied" in said:
            return  # in a folder that its owner may not write in, nor may git
        raise WrongError(f"git apply: {said}; told: {lost[:6]}")
    got = as_open(look(str(copy)), inside)
    for name in sorted(got.keys() | inside["found"].keys()):
        here, wanted = git_view(got.get(name)), git_view(inside["found"].get(name))
        is_told = any(line.startswith(f"{shown_name(name)}: ") for line in lost)
        if here != wanted and not is_told:
            raise WrongError(f"patch: {name!r}: {here} / {wanted}; told: {lost[:6]}")


def git_view(row: list[Any] | None) -> Any:
    """What git knows of a path."""
    if row is None or row[-1] == "closed" or row[0] == stat.S_IFDIR:
        return None
    if row[0] == stat.S_IFREG:
        return "file", bool(row[1] & 0o100), row[5]
    return ("link", row[5]) if row[0] == stat.S_IFLNK else ("special", row[0])


# Many


def clear(folder: Path) -> None:
    """Remove a case's folder, whatever its modes; nothing is followed."""
    with suppress(OSError):
        layers.remove(folder)


def attempt(seed: str, steps: Steps | None, keep: bool = False) -> tuple[str, str]:
    """Run one case in folders of its own; gives what came of it, and what was wrong."""
    place = Path(tempfile.mkdtemp(prefix="podbot-fuzz-", dir="/var/tmp")).resolve()
    far = os.environ.get(FAR)
    other = Path(tempfile.mkdtemp(prefix="podbot-fuzz-", dir=far)) if far else place
    case = Case(seed)
    own, work = (other, place) if case.random.random() < 0.5 else (place, other)
    (own / "layers").mkdir(mode=0o700)
    os.environ["PODBOT_LAYERS"] = str(own / "layers")
    os.environ["PODBOT_STATE"] = str(own / "state")
    try:
        return one_case(case, case.steps if steps is None else steps, work), ""
    except Exception as error:  # whatever it is, it is a finding
        return "wrong", f"{type(error).__name__}: {error}"
    finally:
        if keep:
            print(f"kept: {place} {other}")
        else:
            clear(place)
            clear(other)


def with_another_file_system(words: Sequence[str], program: str = __file__) -> int:
    """Run a program again where there is one, mounted for it alone and gone with it."""
    folder = tempfile.mkdtemp(prefix="podbot-fuzz-far-", dir="/var/tmp")
    try:
        own = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
        # Whoever had to become root of a namespace to mount is nobody special afterwards.
        drop = [] if os.geteuid() == 0 else ["setpriv", "--inh-caps=-all", "--ambient-caps=-all"]
        script = 'mount -t tmpfs -o mode=755,size=2g tmpfs "$1" && shift && exec "$@"'
        argv = ["unshare", *own, "--mount", "sh", "-c", script, "sh", folder, *drop]
        argv += [sys.executable, program, *words]
        return subprocess.run(argv, env={**os.environ, FAR: folder}, check=False).returncode
    finally:
        os.rmdir(folder)


def fewer(seed: str, tries: int = 60) -> Steps:
    """The steps of a failing case without those that it fails without."""
    steps = Case(seed).steps
    size = max(1, len(steps) // 2)
    while tries and size:
        for at in range(0, len(steps), size):
            rest = steps[:at] + steps[at + size :]
            tries -= 1
            if rest and attempt(seed, rest)[0] == "wrong":
                steps = rest
                break
            if not tries:
                break
        else:
            size //= 2
    return steps


def main(words: Sequence[str]) -> int:
    """Run the cases; says each that fails, and a line for all. Gives 1 if any does."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", default=f"{time.time_ns():x}")
    parser.add_argument("--far", action="store_true", help="on two file systems")
    parser.add_argument("--open", action="store_true", help="nothing is closed to its owner")
    parser.add_argument("--closed", action="store_true", help="much is closed to its owner")
    parser.add_argument("--no-patch", action="store_true", help="leave `git apply` out")
    parser.add_argument("--only", type=int, help="this case alone, and keep its folders")
    parser.add_argument("--most", type=int, default=10, help="stop after so many failures")
    options = parser.parse_args(words)
    if options.no_patch:
        os.environ[WITHOUT_PATCH] = "1"
    if options.open:
        os.environ[OPEN] = "1"
    if options.closed:
        os.environ[CLOSED] = "1"
    if options.far and FAR not in os.environ:
        return with_another_file_system([*words, "--seed", options.seed])
    print(f"fuzz: seed {options.seed}, {'far' if options.far else 'near'}, uid {os.geteuid()}")
    numbers = range(options.cases) if options.only is None else [options.only]
    tally: Counter[str] = Counter()
    for number in numbers:
        seed = f"{options.seed}/{number}"
        kind, wrong = attempt(seed, None, keep=options.only is not None)
        tally[kind] += 1
        if wrong:
            print(f"case {number}: {wrong}")
            print(f"  steps: {json.dumps(fewer(seed))}", flush=True)
            if tally["wrong"] >= options.most:
                break
    print(f"fuzz: {sum(tally.values())} cases: {dict(tally)}")
    return 1 if tally["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
