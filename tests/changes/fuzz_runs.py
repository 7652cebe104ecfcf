"""Two or three runs over one folder, applied and undone in any order, in part or whole.

The runs begin now and then, edit, link, move and remove the same few files, and meet what others
applied meanwhile. Whatever is done, this must hold:

- What is refused touches nothing.
- What a run did not change, its apply does not change. Where the host's version is not the one that
  the run began from, the result is that version, the merge of both, or a refusal; two names that
  another run made one file stay one.
- Undoing what was applied last gives back exactly what was there. Undoing an earlier one, if it is
  not refused, leaves all that later ones did. Undoing all, the last first, gives back the start.

    python tests/changes/fuzz_runs.py --cases 200 --seed any-word [--far] [--only N]

A case is made from the seed and its number alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fuzz
from fuzz import LOOK, PROGRAM, PYTHON, WrongError, clear, look
from trees import a_moment_after

from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import applications, undo
from podbot.changes.capture import read
from podbot.changes.diffs.diff import diff
from podbot.changes.diffs.three_way import merge
from podbot.changes.drift import conflicts
from podbot.changes.model import ChangeKind, ChangeSet
from podbot.errors import ChangesError, Kind
from podbot.sandbox.layers import Layer
from podbot.sandbox.overlay.launcher import OverlaySandbox

FOLDERS = ["", "", "", "d", "d/s"]
NAMES = ["a", "b", "c", "x"]
LINES = [f"line {number}\n" for number in range(8)]
REFUSALS = (Kind.CONFLICT, Kind.UNDO_REFUSED, Kind.NOTHING_TO_UNDO, Kind.NOTHING_SELECTED)

View = dict[str, Any]
Step = list[Any]


class Dice:
    """What a case is about, from its seed."""

    def __init__(self, seed: str):
        self.random = random.Random(seed)

    def path(self) -> str:
        folder = self.random.choice(FOLDERS)
        name = self.random.choice(NAMES)
        return f"{folder}/{name}" if folder else name

    def text(self) -> str:
        draw = self.random
        if draw.random() < 0.15:
            return draw.choice(["", "no end", "\0binary", "one\n", "same\n"])
        lines = list(LINES)
        for _ in range(draw.randint(0, 2)):
            at = draw.randrange(len(lines))
            lines[at : at + draw.randint(0, 1)] = [f"{draw.choice('pqr')} {at}\n"]
        return "".join(lines)

    def planted(self) -> list[Step]:
        """The tree before."""
        draw = self.random
        steps: list[Step] = [["folder", folder, None] for folder in ("d/s",)]
        files: list[str] = []
        for path in draw.sample([f"{f}/{n}".lstrip("/") for f in set(FOLDERS) for n in NAMES], 7):
            kind = draw.random()
            if kind < 0.25 and files:
                steps.append(["name", path, draw.choice(files)])
            elif kind < 0.35:
                steps.append(["link", path, draw.choice(["a", "nowhere", "d"])])
            else:
                files.append(path)
                steps.append(["write", path, draw.choice(["".join(LINES), "same\n", self.text()])])
                steps.append(["time", path, 10**18])  # those with the same text are alike
        return steps

    def work(self) -> list[Step]:
        """What a run does."""
        return [self._step() for _ in range(self.random.randint(1, 8))]

    def _step(self) -> Step:
        draw = self.random
        path, other = self.path(), self.path()
        verbs = {
            "write": 8, "append": 3, "remove": 3, "name": 4, "relink": 4, "move": 3, "mode": 2,
            "folder": 2, "link": 1, "become": 1, "again": 1, "note": 1, "swap": 1,
        }  # fmt: skip
        verb = draw.choices([*verbs], [*verbs.values()])[0]
        if verb == "relink":  # what is there gives way to another name
            return ["become", path, ["name", path, other]]
        more: Any = {
            "write": self.text(),
            "append": draw.choice(["p\n", "q\n"]),
            "name": other,
            "move": other,
            "swap": other,
            "mode": draw.choice([0o644, 0o600, 0o755]),
            "link": draw.choice(["a", "elsewhere"]),
            "become": draw.choice([["write", path, "new\n"], ["folder", path, None]]),
            "note": draw.choice(["x", "y"]),
        }.get(verb)
        if verb == "remove" and draw.random() < 0.3:
            path = draw.choice(["d", "d/s"])
        if verb in ("mode", "note") and draw.random() < 0.3:
            path = draw.choice(["d", "d/s"])
            more = 0o700 if verb == "mode" else more
        if verb == "folder":
            path = draw.choice(["n", "d/n"])
            return ["write", f"{path}/{draw.choice(NAMES)}", self.text()]
        return [verb, path, more]


def worked(target: Path, steps: Sequence[Step]) -> tuple[View, Layer | None]:
    """A run that is over; what it saw at its end, and its layer."""
    a_moment_after(time.time_ns())
    with OverlaySandbox(target) as sandbox:
        program = PROGRAM.replace("@LOOK@", LOOK)
        result = sandbox.exec([PYTHON, "-I", "-c", program], stdin=json.dumps(steps), timeout=120)
        if not result.ok:
            raise WrongError(f"inside: {result.exit_code}: {result.stderr[-1000:]}")
    a_moment_after(time.time_ns())
    layer = sandbox.layer
    return json.loads(result.stdout), layer if layer and layer.path.exists() else None


class Run:
    """One run, with what it began from and what it saw at its end."""

    def __init__(self, number: int, target: Path, steps: Sequence[Step]):
        self.number = number
        self.base: View = look(str(target))
        self.inside, self.layer = worked(target, steps)
        self.texts = texts(self.layer)

    def changed(self, path: str) -> bool:
        """Whether the run did anything to it."""
        return plain(self.base, path) != plain(self.inside, path)

    def relinked(self, path: str) -> bool:
        """Whether the run made it one file with another, or no longer."""
        return names_of(self.base, path) != names_of(self.inside, path)


def texts(layer: Layer | None) -> dict[str, bytes]:
    """The files of a layer, by path."""
    found: dict[str, bytes] = {}
    if layer is not None:
        top = layer.upper(0)
        for where, _, names in os.walk(top):
            for name in names:
                path = os.path.join(where, name)
                if stat.S_ISREG(os.lstat(path).st_mode):
                    found[os.path.relpath(path, top)] = Path(path).read_bytes()
    return found


def plain(view: View, path: str) -> Any:
    """What is at a path, but for the times of folders and, where only they differ, of files."""
    row = view["found"].get(path)
    return None if row is None else [*row[:4], *row[5:]]


def names_of(view: View, path: str) -> tuple[str, ...]:
    """Every name of the file at a path."""
    return next((tuple(names) for names in view["same"] if path in names), (path,))


def different(one: View, other: View) -> set[str]:
    """Paths that are not alike in two looks, as names of one file too."""
    found = {
        path
        for path in one["found"].keys() | other["found"].keys()
        if plain(one, path) != plain(other, path)
    }
    for names in set(map(tuple, one["same"])) ^ set(map(tuple, other["same"])):
        found |= set(names)
    return found


class Application:
    """What was applied and not taken back whole."""

    def __init__(self, id: str, before: View, after: View):
        self.id, self.before, self.after = id, before, after
        self.paths = different(before, after)


class Game:
    """A case: its folder, its runs, and what is applied."""

    def __init__(self, seed: str, target: Path):
        self.dice, self.target = Dice(seed), target
        self.runs: list[Run] = []
        self.stack: list[Application] = []
        self.is_straight = True  # nothing was undone out of order or in part so far
        self.told: list[str] = []
        self.tally: Counter[str] = Counter()
        self.bases: dict[str, bytes] = {}
        self.start: View = {"found": {}, "same": []}

    def play(self) -> None:
        draw = self.dice.random
        steps = self.dice.planted()
        done = subprocess.run(
            [PYTHON, "-I", "-c", PROGRAM.replace("@LOOK@", LOOK)],
            cwd=self.target, input=json.dumps(steps), text=True, capture_output=True, check=True,
        )  # fmt: skip
        self.told.append(f"plant {steps}")
        assert done.stdout
        self.start = look(str(self.target))
        self.begin()
        self.begin()
        for _ in range(draw.randint(4, 9)):
            what = draw.random()
            if what < 0.12 and len(self.runs) < 3:
                self.begin()
            elif what < 0.65:
                self.apply(draw.choice(self.runs))
            else:
                self.undo(draw.choice(self.runs))
        self.undo_all(self.start)

    def begin(self) -> None:
        steps = self.dice.work()
        self.told.append(f"run {len(self.runs)}: {steps}")
        run = Run(len(self.runs), self.target, steps)
        self.runs.append(run)
        for path in run.base["found"]:
            file = self.target / path
            if file.is_file() and not file.is_symlink():
                digest = run.base["found"][path][5]
                self.bases[digest] = file.read_bytes()

    # Applying

    def apply(self, run: Run) -> None:
        draw = self.dice.random
        if run.layer is None:
            return
        before: View = look(str(self.target))
        self.remember()
        changes = read(run.layer)
        options: dict[str, Any] = {}
        part = draw.random()
        whole = part < 0.6
        if part >= 0.8 and changes:
            options["only"] = [draw.choice([change.path or "." for change in changes])]
        elif not whole and changes:
            options["hunks"] = self.hunks(changes)
        self.told.append(f"apply {run.number} {options}")
        in_the_way = conflicts(changes) if whole else ()
        try:
            applied = apply(changes, allow_flagged=True, **options)
        except ChangesError as error:
            self.refused(error, before)
            if whole and not in_the_way and "still holds" not in str(error):
                self.tally["late"] += 1
            return
        if in_the_way:
            raise WrongError(f"applied in spite of {in_the_way}")
        after: View = look(str(self.target))
        self.tally["applied"] += 1
        if applied.id:
            self.stack.append(Application(applied.id, before, after))
        self.judge(run, before, after, "hunks" in options)
        if whole and (left := [c.path for c in read(run.layer)]):
            raise WrongError(f"left of run {run.number}: {left}")

    def hunks(self, changes: ChangeSet) -> dict[str, list[int]]:
        for change in changes:
            if change.kind is ChangeKind.MODIFIED and not changes.is_binary(change):
                count = len(diff(changes, change).hunks)
                if count:
                    return {change.path: [self.dice.random.randrange(count)]}
        return {}

    def judge(self, run: Run, before: View, after: View, is_part: bool) -> None:
        """Whether an apply kept what others had done."""
        for path in different(before, after):
            if plain(before, path) == plain(after, path):
                continue  # only its other names came or went
            if not run.changed(path) and not run.relinked(path):
                raise WrongError(f"run {run.number} did nothing to {path}, and it changed: "
                                 f"{plain(before, path)} / {plain(after, path)}")  # fmt: skip
            if plain(before, path) in (plain(run.base, path), plain(run.inside, path)):
                continue
            was = before["found"].get(path)
            if was is not None and stat.S_ISDIR(was[0]) and path not in after["found"]:
                continue  # a folder goes with its mode, if all that is in it does
            if not self.is_merge(run, path, before, after, is_part):
                raise WrongError(
                    f"run {run.number} applied over {path}: began from {plain(run.base, path)},"
                    f" had {plain(run.inside, path)}, met {plain(before, path)},"
                    f" gave {plain(after, path)}"
                )
        for one, other in self.made_one(run, before):
            gone = one not in after["found"] or other not in after["found"]
            if not gone and other not in names_of(after, one):
                raise WrongError(f"run {run.number} parted {one} and {other}")

    def made_one(self, run: Run, now: View) -> set[tuple[str, str]]:
        """Pairs of names of one file that another run made such, and this one did not know."""
        return {
            (one, other)
            for names in now["same"]
            for one in names
            for other in names
            if one != other
            for maker in self.runs
            if maker is not run
            and other in names_of(maker.inside, one)
            and not any(other in names_of(view, one) for view in (self.start, run.base, run.inside))
        }

    def is_merge(self, run: Run, path: str, before: View, after: View, is_part: bool) -> bool:
        rows = [view["found"].get(path) for view in (run.base, before, run.inside, after)]
        if is_part:
            return True
        if any(row is None or not stat.S_ISREG(row[0]) for row in rows[1:]):
            return all(row is not None and stat.S_ISDIR(row[0]) for row in rows[1:])
        if rows[0] is not None and not stat.S_ISREG(rows[0][0]):
            return False
        base = None if rows[0] is None else self.bases[rows[0][5]]
        host, mine = self.bases[rows[1][5]], run.texts[path]
        found = merge(base, host, mine).contents
        return found is not None and found == (self.target / path).read_bytes()

    def remember(self) -> None:
        view = look(str(self.target))
        for path, row in view["found"].items():
            if stat.S_ISREG(row[0]):
                self.bases[row[5]] = (self.target / path).read_bytes()

    def refused(self, error: ChangesError, before: View) -> None:
        self.told.append(f"  refused: {error.kind} {str(error)[:400]}")
        self.tally[f"refused {error.kind}"] += 1
        if error.kind not in REFUSALS:
            raise WrongError(f"{error.kind}: {error}") from error
        if look(str(self.target)) != before:
            raise WrongError(f"refused, and yet: {different(before, look(str(self.target)))}")

    # Undoing

    def undo(self, run: Run, only: Sequence[str] = ()) -> None:
        draw = self.dice.random
        if run.layer is None:
            return
        mine = [a for a in applications(run.layer.id) if not a.undone]
        if not mine:
            return
        id = mine[-1].id
        before: View = look(str(self.target))
        at = next(i for i, one in enumerate(self.stack) if one.id == id)
        application = self.stack[at]
        if draw.random() < 0.3:
            paths = sorted(application.paths)
            only = [draw.choice(paths)] if paths else ()
        self.told.append(f"undo {run.number} {only}")
        try:
            undone = undo(id, only=only)
        except ChangesError as error:
            self.refused(error, before)
            is_last = at == len(self.stack) - 1
            if is_last and not only and error.kind is not Kind.NOTHING_TO_UNDO:
                raise WrongError(f"the last could not be undone: {error}") from error
            return
        self.tally["undone"] += 1
        after: View = look(str(self.target))
        changed = different(before, after)
        for later in self.stack[at + 1 :]:
            lost = {
                path
                for path in changed & later.paths
                # A part of it may have been taken back before, and then it is not lost here.
                if plain(before, path) == plain(later.after, path)
                and self.is_lost(path, later, after)
            }
            if lost:
                raise WrongError(f"undo of {run.number} changed {lost}, which came later")
        if only or undone.left:
            self.is_straight = False
            if not any(a.id == id and not a.undone for a in applications(run.layer.id)):
                del self.stack[at]
            return
        del self.stack[at]
        if at < len(self.stack):
            self.is_straight = False
            self.tally["undone below"] += 1
        elif self.is_straight and after != application.before:
            raise WrongError(f"undo of the last: {fuzz.differences(after, application.before)}"
                             f" {after['same']} {application.before['same']}")  # fmt: skip

    @staticmethod
    def is_lost(path: str, later: Application, after: View) -> bool:
        return plain(after, path) != plain(later.after, path) and plain(
            later.before, path
        ) != plain(later.after, path)

    def undo_all(self, start: View) -> None:
        """Take back what is left, the last first: nobody did anything else."""
        self.told.append("undo all")
        while self.stack:
            last = self.stack.pop()
            try:
                undo(last.id)
            except ChangesError as error:
                if error.kind is not Kind.NOTHING_TO_UNDO:
                    raise WrongError(f"at the end: {error}") from error
        end: View = look(str(self.target))
        if different(start, end) or (self.is_straight and start != end):
            raise WrongError(f"in the end: {different(start, end) or fuzz.differences(start, end)}"
                             f" {start['same']} / {end['same']}")  # fmt: skip


def attempt(seed: str, tally: Counter[str]) -> tuple[str, list[str]]:
    """Play one case in folders of its own; gives what was wrong, and what was done."""
    place = Path(tempfile.mkdtemp(prefix="podbot-fuzz-", dir="/var/tmp")).resolve()
    far = os.environ.get(fuzz.FAR)
    other = Path(tempfile.mkdtemp(prefix="podbot-fuzz-", dir=far)) if far else place
    own, work = (other, place) if len(re.sub(r"\D", "", seed)) % 2 else (place, other)
    (own / "layers").mkdir(mode=0o700)
    os.environ["PODBOT_LAYERS"] = str(own / "layers")
    os.environ["PODBOT_STATE"] = str(own / "state")
    target = work / "target"
    target.mkdir()
    game = Game(seed, target)
    try:
        game.play()
    except Exception as error:  # whatever it is, it is a finding
        tally.update(game.tally)
        if os.environ.get("FUZZ_TRACE"):
            import traceback

            traceback.print_exc()
        return f"{type(error).__name__}: {error}", game.told
    finally:
        clear(place)
        clear(other)
    tally.update(game.tally)
    return "", game.told


def main(words: Sequence[str]) -> int:
    """Play the cases; says each that fails, and a line for all. Gives 1 if any does."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", default=f"{time.time_ns():x}")
    parser.add_argument("--far", action="store_true", help="on two file systems")
    parser.add_argument("--only", type=int, help="this case alone")
    parser.add_argument("--most", type=int, default=10, help="stop after so many failures")
    options = parser.parse_args(words)
    if options.far and fuzz.FAR not in os.environ:
        return fuzz.with_another_file_system([*words, "--seed", options.seed], __file__)
    os.umask(0o022)
    print(f"fuzz: seed {options.seed}, {'far' if options.far else 'near'}, uid {os.geteuid()}")
    numbers = range(options.cases) if options.only is None else [options.only]
    tally: Counter[str] = Counter()
    failures = 0
    for number in numbers:
        wrong, told = attempt(f"{options.seed}/{number}", tally)
        if wrong:
            failures += 1
            print(f"case {number}: {wrong}")
            print("  " + "\n  ".join(told), flush=True)
            if failures >= options.most:
                break
    print(f"fuzz: {len(numbers)} cases, {failures} wrong: {dict(sorted(tally.items()))}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
