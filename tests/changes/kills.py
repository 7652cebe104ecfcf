"""Kill `podbot changes apply | undo | save | load` at system calls, and look at what is left.

    python tests/changes/kills.py                  at every call that may change a file system
    python tests/changes/kills.py --share 20       at so many of each, drawn from the seed
    python tests/changes/kills.py --any 200        at so many of all other calls, too

After each kill the next command, which only looks, must leave the target exactly as it was before
or exactly as it was to be, and the same command must then do its work. On one file system, and with
what podbot keeps on another one. Ends with 1 at the first that is not so, and says how to repeat
it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True  # or the first one to load a module would write there

from stopping import Ended, run  # noqa: E402 - found by the line above
from trees import look, nothing_left_in  # noqa: E402 - likewise

OTHER_DISK = "/dev/shm"
VERBS = ("apply", "undo", "save", "load")
MANY = 210
"""So many things of one folder go that the store of an application has shelves."""

PLANT = f"""
umask 022
echo one > edited; echo two > gone; echo three > moved; echo four > moded
mkdir folder folder/in; echo five > folder/in/file; echo six > folder/other
echo seven > becomes-folder; mkdir becomes-file; echo in > becomes-file/in
ln -s edited link; mkfifo pipe; mkdir -m 2775 handed
echo same > twin-a; ln twin-a twin-b; echo kept > twin-c; mkdir far; ln twin-c far/twin
mkdir shut; echo s > shut/s; chmod 555 shut
mkdir many; for i in $(seq {MANY}); do echo $i > many/$i; done
touch -d 2020-02-02 folder shut many .
"""
WORK = """
umask 022
echo more >> edited; rm gone pipe; mv moved elsewhere; chmod 600 moded; touch -d 2001-01-01 moded
rm -r folder; rm -r becomes-file; echo now > becomes-file
rm becomes-folder; mkdir becomes-folder; echo in > becomes-folder/in; chmod 500 becomes-folder
ln -sfn elsewhere link; mkfifo new-pipe; echo changed > twin-a; rm far/twin
chmod 755 shut; echo new > shut/new; rm shut/s; chmod 555 shut
mkdir -p deep/er handed/deeper; echo d > deep/er/d; ln deep/er/d hard; ln edited hard-too
echo h > handed/deeper/h; head -c 400000 /dev/urandom > large
rm many/*; touch -d 2010-10-10 deep/er deep .
python3 -c "import os; os.setxattr('edited', 'user.note', b'new')" || true
"""


class WrongError(Exception):
    """What was left is neither the one nor the other; the message says what of it."""


class Place:
    """A target with a run over it, kept on the same file system or on another one."""

    def __init__(self, target: Path, layers: Path, kept: Path):
        self.target, self.kept = target, kept
        self.archive = kept / "work.tar"
        self.saved = kept / "saved"
        self.saved.mkdir()
        os.environ |= {"PODBOT_LAYERS": str(layers), "PODBOT_STATE": str(kept / "state")}
        subprocess.run(["bash", "-ec", PLANT], cwd=target, check=True)
        with contextlib.suppress(OSError):
            os.setxattr(target / "edited", "user.note", b"old")
        command = [sys.executable, "-m", "podbot", "run", "--keep", "--", "bash", "-ec", WORK]
        subprocess.run(command, cwd=target, check=True, capture_output=True)
        [found] = self.runs()
        self.id = str(found["id"])
        self.changes = found["changes_count"]
        self.before = look(target)
        self.podbot("apply", self.id, "--allow-flagged", "all")
        self.after = look(target)
        self.podbot("undo", self.id)
        self.expect("the first undo", self.before)
        self.podbot("save", self.id, str(self.archive))

    def podbot(self, *words: str) -> dict[str, object]:
        """A verb of `podbot changes`, which must do its work; gives what it tells."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os._exit(command(*words, "--json"))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            errors.seek(0)
            if status:
                said = errors.read().decode(errors="replace")
                raise WrongError(f"podbot changes {words[0]} ended with {status}: {said}")
            told = json.load(out)
            assert isinstance(told, dict)
            return told

    def runs(self) -> list[dict[str, object]]:
        """What the next command is: it lists what is there."""
        found = self.podbot("list")["runs"]
        assert isinstance(found, list)
        return found

    def expect(self, when: str, *allowed: dict[str, object]) -> None:
        """Raise unless the target is exactly one of these."""
        found = look(self.target)
        if found not in allowed:
            raise WrongError(f"{when} the target is {_difference(found, allowed[-1])}")
        if not nothing_left_in(self.target):
            raise WrongError(f"{when} temporary names are left in the target")

    def killed(self, verb: str, at: int | None, every: bool) -> Ended:
        """A verb, killed; and all that must hold then."""
        if verb == "undo":
            self.podbot("apply", self.id, "--allow-flagged", "all")
        before = {str(each["id"]) for each in self.runs()}
        ended = run(lambda: quietly(*self.words(verb)), at, every=every)
        if ended.killed_at is None and ended.status != 0:
            raise WrongError(f"it was not killed, and ended with {ended.status}")
        runs = self.runs()
        getattr(self, f"after_{verb}")(runs)
        for each in runs:
            if each["id"] not in before:
                self.podbot("discard", str(each["id"]))
        self.expect("in the end", self.before)
        return ended

    def words(self, verb: str) -> tuple[str, ...]:
        """What is typed."""
        return {
            "apply": ("apply", self.id, "--allow-flagged", "all"),
            "undo": ("undo", self.id),
            "save": ("save", self.id, str(self.saved / "saved.tar")),
            "load": ("load", str(self.archive), "--as-saved"),
        }[verb]

    def after_apply(self, runs: list[dict[str, object]]) -> None:
        """All of it or nothing; then it is done once more, and taken back."""
        self.expect("after the next command", self.after, self.before)
        if look(self.target) == self.before:
            self.podbot(*self.words("apply"))
            self.expect("after it was done again", self.after)
        self.podbot("undo", self.id)

    def after_undo(self, runs: list[dict[str, object]]) -> None:
        """The same backwards."""
        self.expect("after the next command", self.after, self.before)
        if look(self.target) == self.after:
            self.podbot(*self.words("undo"))

    def after_save(self, runs: list[dict[str, object]]) -> None:
        """No file, or all of it."""
        for file in self.saved.iterdir():
            if file.name != "saved.tar" or file.stat().st_size != self.archive.stat().st_size:
                raise WrongError(f"{file.name} is left, with {file.stat().st_size} bytes")
            file.unlink()
        self.podbot(*self.words("save"))
        (self.saved / "saved.tar").unlink()

    def after_load(self, runs: list[dict[str, object]]) -> None:
        """No run, or all of it."""
        for each in runs:
            if each["id"] != self.id and (
                each["changes_count"] != self.changes or each["problem"] or not each["command"]
            ):
                raise WrongError(f"a run is left that is not whole: {each}")
        loaded = self.podbot(*self.words("load"))
        if loaded["changes_count"] != self.changes:
            raise WrongError(f"loading again gives {loaded['changes_count']} changes")
        self.podbot("discard", str(loaded["id"]))

    def forget(self) -> None:
        """Have no more journals than a person would."""
        from podbot.changes.applying import undo

        if not os.fork():
            undo.forget(self.id)
            os._exit(0)
        os.wait()


def be_quick() -> None:
    """Load all there is once, for every fork.

    Wait for no disk, as a killed process loses nothing of what it wrote; and have what is kept lie
    where the state is, even if there would be a place on the target's own file system.
    """
    import podbot.changes
    import podbot.cli
    from podbot import kernel
    from podbot.changes.applying.journal import KEPT, Journal

    for package in (podbot.changes, podbot.cli):
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    gc.freeze()

    def store_for(own: Journal, device: int) -> Path:
        (own.folder / KEPT).mkdir(mode=0o700, exist_ok=True)
        return own.folder / KEPT

    Journal.store_for = store_for  # type: ignore[method-assign]  # for good, in this process
    for name in ("fsync", "fdatasync", "sync"):
        setattr(os, name, lambda *_: None)
    kernel.sync_file_system = lambda fd: None  # type: ignore[assignment]  # likewise


def command(*words: str) -> int:
    """`podbot changes`, in this process."""
    from podbot.cli import main

    return main(["changes", *words])


def quietly(*words: str) -> int:
    """The same, and nothing of what it says is seen."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)
    return command(*words)


def _difference(found: dict[str, object], wanted: dict[str, object]) -> str:
    ours, theirs = found["paths"], wanted["paths"]
    assert isinstance(ours, dict)
    assert isinstance(theirs, dict)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    told = [f"{name}: {ours.get(name)} instead of {theirs.get(name)}" for name in names[:3]]
    return "; ".join(told) or f"linked otherwise: {found['links']} instead of {wanted['links']}"


@contextlib.contextmanager
def place(disks: str) -> Iterator[Place]:
    """Where it all happens; nothing of it is left."""
    from podbot.sandbox import layers

    near = Path(tempfile.mkdtemp(prefix="podbot-kills-", dir="/var/tmp")).resolve()
    far = near if disks == "one" else Path(tempfile.mkdtemp(prefix="podbot-kills-", dir=OTHER_DISK))
    try:
        (near / "target").mkdir()
        (far / "kept").mkdir(mode=0o700)
        yield Place(near / "target", near / "layers", far / "kept")
    finally:
        for folder in {near, far}:
            layers.remove(folder)


def _is_another_disk(folder: str) -> bool:
    near = os.stat("/var/tmp").st_dev
    return os.path.isdir(folder) and os.stat(folder).st_dev != near


def numbers(total: int, share: int | None, chance: random.Random) -> list[int]:
    """Which calls to be killed at."""
    if share is None or share >= total:
        return [*range(total)]
    return sorted(chance.sample(range(total), share))


def kill_all(where: Place, told: str, verb: str, share: int | None, every: bool, seed: str) -> int:
    """Kill one verb at some calls or at all; how many that were."""
    digest = hashlib.sha256(f"{seed} {told} {verb} {every}".encode()).digest()
    total = where.killed(verb, None, every).calls
    chosen = numbers(total, share, random.Random(digest))
    began = time.monotonic()
    for done, at in enumerate(chosen):
        try:
            where.killed(verb, at, every)
        except WrongError as error:
            which = "any" if every else "changing"
            raise WrongError(f"{verb}, {told}, killed at call {at} ({which}): {error}") from None
        if done % 20 == 19:
            where.forget()
    what = "of all calls" if every else "calls that change something"
    seconds = time.monotonic() - began
    print(f"{verb:6} {told}: {len(chosen)} of {total} {what}, {seconds:.0f} s", flush=True)
    return len(chosen)


def main() -> int:
    """Kill as the command line says."""
    parser = argparse.ArgumentParser(description="Kill podbot at system calls")
    parser.add_argument("--share", type=int, help="so many changing calls of each (default: all)")
    parser.add_argument("--any", type=int, default=0, help="and so many of all calls of each")
    parser.add_argument("--seed", default=os.environ.get("PODBOT_SEED") or os.urandom(4).hex())
    parser.add_argument("--verb", action="append", choices=VERBS)
    parser.add_argument("--disks", choices=("one", "two"), action="append")
    arguments = parser.parse_args()
    print(f"seed: {arguments.seed}", flush=True)
    be_quick()
    kills = 0
    for disks in arguments.disks or ("one", "two"):
        if disks == "two" and os.stat(OTHER_DISK).st_dev == os.stat("/var/tmp").st_dev:
            print(f"{OTHER_DISK} is on the same file system: nothing is tried across two")
            continue
        told = f"{disks} file system{'s' * (disks == 'two')}"
        with place(disks) as where:
            for verb in arguments.verb or VERBS:
                tries: list[tuple[int | None, bool]] = [(arguments.share, False)]
                tries += [(arguments.any, True)] * bool(arguments.any)
                for share, every in tries:
                    try:
                        kills += kill_all(where, told, verb, share, every, arguments.seed)
                    except WrongError as error:
                        print(f"WRONG: {error}\nseed: {arguments.seed}", flush=True)
                        return 1
    print(f"{kills} kills, and the target was always as before or as it was to be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
