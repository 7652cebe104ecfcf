"""What would run once changes are applied to the host, without the user meaning to run it.

Two levels: what runs *by itself* needs a consent of its own, what runs *when used* is pointed out.
What was chosen of a run is judged as a part of it: that a command comes before the file that makes
its folder one must not spare it the question. Judged by the path (`rules`), by what the thing is
(a link out of the target, a setuid file, a new program), and by what this host already does with
that path (`_host`). Reads little and writes nothing; a flag is a warning for a person, no proof
that the rest is harmless.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cached_property

from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.risk._contents import (
    install_scripts_changed,
    is_among_settings_of_home,
    is_folder_of_tools,
    is_named_like_settings,
    is_program_text,
    is_script,
    may_be_settings,
    names_command,
    scripts_changed,
)
from podbot.changes.risk._git import Finding, Repositories, inside, is_stored
from podbot.changes.risk._host import Host
from podbot.changes.risk._ordinary import INSTALLED, TOOLS, Ordinary, is_about
from podbot.changes.risk.paths import fitting, leading, parts_of
from podbot.changes.risk.rules import COMMAND_FOLDER, LEADS_OUT, LISTED_CHECKS, Level, Rule
from podbot.frozen import dataclass

SPECIAL = (FileType.FIFO, FileType.SOCKET, FileType.DEVICE)
_TESTS = frozenset({"test", "tests"})  # a module of the standard library that projects have too


@dataclass(frozen=True, slots=True)
class Flag:
    """A change that would run something, on which level and why, in one sentence for a person."""

    level: Level
    change: Change
    reason: str


def flags(changes: ChangeSet) -> tuple[Flag, ...]:
    """Every flag of a change set, in the order of its changes."""
    review = _Review(changes)
    return tuple(flag for change in changes for flag in review.flags(change))


def flags_of(changes: ChangeSet, change: Change) -> tuple[Flag, ...]:
    """The flags of one change of a set; those of the first level alone if it has any."""
    return _Review(changes).flags(change)


class _Review:
    """One look at a change set: what it brings, and what the host does with its paths."""

    def __init__(self, changes: ChangeSet):
        self._changes, self._contents = changes, changes.contents
        run = (*changes, *changes.left_out)
        self._host = Host(changes.targets, changed=(change.where for change in run))
        self._repositories = Repositories(changes, changes.left_out)
        self._ordinary = Ordinary(self._host, self._repositories)
        self._packages: dict[str, bool] = {}
        self._environments: dict[str, bool] = {}

    @cached_property
    def _brought(self) -> set[str]:
        run = (*self._changes, *self._changes.left_out)
        return {change.where for change in run if change.new is not None}

    @cached_property
    def _gone(self) -> set[str]:
        return {change.where for change in self._changes if change.new is None}

    @cached_property
    def _going(self) -> set[str]:
        """What goes now, or may go with what was left out: it excuses nothing."""
        return self._gone | {each.where for each in self._changes.left_out if each.new is None}

    def flags(self, change: Change) -> tuple[Flag, ...]:
        """What one change would run: only the strongest level, each reason once."""
        if self._ordinary.is_ordinary(change):
            return ()
        found = dict.fromkeys(self._findings(change))
        by_itself = [finding for finding in found if finding[0] is Level.BY_ITSELF]
        return tuple(Flag(level, change, reason) for level, reason in by_itself or found)

    def _findings(self, change: Change) -> Iterator[Finding]:
        names = parts_of(change.where)
        if change.new is None:
            yield from self._lost(names)
            return
        if change.kind is ChangeKind.RENAMED and change.source is not None:
            yield from self._lost(parts_of(f"{change.target}/{change.source}"))
        yield from self._given_powers(change, change.new)
        if change.new.type is FileType.FOLDER:
            yield from self._as_folder(change, change.new, names)
            return
        if change.kind is ChangeKind.MODE and not _gains(change):
            return
        rules = fitting(names)
        yield from self._by_path(change, names, rules)
        yield from self._by_host(change, change.new)
        yield from self._by_type(change, change.new, names)
        if change.new.type is not FileType.LINK:
            yield from self._as_program(change, change.new, names, bool(rules))

    # By path

    def _lost(self, names: list[str]) -> Iterator[Finding]:
        rules = [rule for rule in fitting(names).values() if rule.guards]
        if rules and ".git" not in names:
            yield Level.WHEN_USED, "it is gone, and with it a check or a rule that it held"

    def _by_path(
        self, change: Change, names: list[str], rules: dict[Level, Rule]
    ) -> Iterator[Finding]:
        if ".git" in names:
            # A folder .git in a folder .git: the inner and the outer one both count.
            first, last = names.index(".git"), len(names) - 1 - names[::-1].index(".git")
            finding = inside(names[last + 1 :], change) or inside(names[first + 1 :], change)
            if finding is not None:
                yield finding
            if is_stored(names[first + 1 :]):
                return
        yield from self._as_repository(change)
        for level, rule in rules.items():
            reason = rule.reason
            if reason == LISTED_CHECKS and self._host.has_hooks(change.where):
                yield Level.BY_ITSELF, "git hooks are installed on this host: they run what it says"
            if names[-1] == "package.json" and install_scripts_changed(self._contents, change):
                reason = "its install scripts changed: the next install runs them"
            yield level, reason

    def _as_repository(self, change: Change) -> Iterator[Finding]:
        finding = self._repositories.inside(change)
        if finding is not None:
            yield finding

    # By what the host does with it

    def _by_host(self, change: Change, new: State) -> Iterator[Finding]:
        where = change.where
        for finding in (self._host.pointed_at(where), self._host.reached_through(where)):
            if finding is not None:
                yield finding
        called = self._host.scripts_called(where)
        if called:
            yield from (called[name] for name in scripts_changed(self._contents, change, called))
        if not (new.executable or new.type is FileType.LINK):
            if self._host.is_loaded(where):
                yield Level.BY_ITSELF, "programs load libraries from this folder first"
            return
        if self._host.is_on_path(where):
            yield Level.BY_ITSELF, "it is in a folder on your PATH: its name runs as a command"
        elif self._is_command_folder(where):
            yield Level.BY_ITSELF, COMMAND_FOLDER
        if new.type is FileType.LINK and self._host.leads_to_path(where):
            yield Level.BY_ITSELF, "commands on your PATH are then taken from where it points"

    def _is_command_folder(self, where: str) -> bool:
        folder = where.rpartition("/")[0]
        lower = folder.lower()
        if lower.endswith(("/.local/bin", "/node_modules/.bin", "/.cargo/bin", "/go/bin", "/.bin")):
            return True
        above, _, name = folder.rpartition("/")
        if name.lower() not in ("bin", "sbin", "scripts", "shims"):
            return False
        if above == os.environ.get("HOME") or is_folder_of_tools(above):
            return True
        known = self._environments.get(above)
        if known is None:
            known = self._environments[above] = self._will_be(f"{above}/pyvenv.cfg")
        return known

    def _will_be(self, path: str) -> bool:
        return path in self._brought or (path not in self._gone and os.path.lexists(path))

    # By what it is

    def _as_folder(self, change: Change, new: State, names: list[str]) -> Iterator[Finding]:
        """A folder is a part of a repository, or one that others may now put things in."""
        if change.kind is not ChangeKind.MODE:
            yield from self._as_repository(change)
        old = change.old if change.old is not None and change.old.type is FileType.FOLDER else None
        gained = new.mode & ~(old.mode if old is not None else 0)
        handed_over = old is not None and (old.uid, old.gid) != (new.uid, new.gid)
        if not (gained & 0o022 or handed_over):
            return
        # New folders that a group may write in are what some systems' settings make of any.
        given = old is not None or bool(gained & 0o002)
        if _is_of_what_runs(names) or (given and self._holds_what_runs(change, names)):
            yield Level.BY_ITSELF, "others may now write in it, and what lies in it runs by itself"
        elif gained & 0o002 and not new.mode & 0o1000:
            yield Level.WHEN_USED, "everyone may now write in it"

    def _holds_what_runs(self, change: Change, names: list[str]) -> bool:
        # At the top of the target everything that the table knows can be put.
        if not change.path or Level.BY_ITSELF in leading(names):
            return True
        return self._host.holds_what_runs(change.where)

    def _given_powers(self, change: Change, new: State) -> Iterator[Finding]:
        if new.type is not FileType.FILE:
            return
        same = change.kind is ChangeKind.MODE and change.old is not None
        before = change.old.mode if same and change.old is not None else 0
        gained = new.mode & ~before
        if gained & 0o4000:
            yield Level.BY_ITSELF, "it runs with the rights of its owner, whoever starts it"
        elif gained & 0o2000:
            yield Level.BY_ITSELF, "it runs with the rights of its group, whoever starts it"
        old = dict(change.old.xattrs) if same and change.old is not None else {}
        capability = dict(new.xattrs).get("security.capability")
        if capability is not None and old.get("security.capability") != capability:
            yield Level.BY_ITSELF, "it runs with rights of the system, whoever starts it"

    def _by_type(self, change: Change, new: State, names: list[str]) -> Iterator[Finding]:
        if new.type is FileType.LINK:
            yield from self._as_link(change, new, names)
        elif new.type is FileType.DEVICE:
            yield Level.BY_ITSELF, "it is a device: using it reaches the machine, not a file"
        elif new.type in SPECIAL:
            yield Level.WHEN_USED, f"it is a {new.type}: a program that opens it talks to another"
        if change.kind is ChangeKind.HARD_LINK and change.source is not None:
            yield from self._as_other_name(change, change.source, names)

    def _as_link(self, change: Change, new: State, names: list[str]) -> Iterator[Finding]:
        link = new.link or ""
        place = _lexical(change, link)
        if place is None or _leaves(change.target, place):
            yield Level.BY_ITSELF, LEADS_OUT
        elif ".git" in parts_of(place):
            yield Level.BY_ITSELF, "it is a link into git's own folder: writing to it changes git"
        for level, rule in leading(names).items():
            yield level, f"all in it comes from where this link points, and {rule.reason}"
        # A link to a folder is a package too, one to a file a module.
        yield from self._shadowing(change)

    def _as_other_name(self, change: Change, source: str, names: list[str]) -> Iterator[Finding]:
        other = parts_of(f"{change.target}/{source}")
        if ".git" in other and ".git" not in names:
            yield Level.BY_ITSELF, "it is another name for a file of git's own: writing changes git"
        elif Level.BY_ITSELF in fitting(other) or self._host.runs_by_itself(
            f"{change.target}/{source}"
        ):
            yield Level.BY_ITSELF, "it is another name for a file that runs by itself"

    def _as_program(
        self, change: Change, new: State, names: list[str], is_flagged: bool
    ) -> Iterator[Finding]:
        if ".git" in names:
            return
        yield from self._shadowing(change)
        fresh = change.old is None or change.kind in (ChangeKind.REPLACED, ChangeKind.RENAMED)
        newly = new.executable and not (change.old is not None and change.old.executable)
        if newly and self._host.relative_path:
            yield Level.BY_ITSELF, "your PATH has relative folders: its name may run as a command"
        if not INSTALLED.isdisjoint(names) and not (is_about(names[-1]) and not new.executable):
            yield Level.WHEN_USED, "it is part of an installed package, which nobody reviews"
        if is_flagged:
            return
        at_home = is_among_settings_of_home(change)
        if (
            may_be_settings(change.path) or (at_home and is_named_like_settings(change.path))
        ) and names_command(self._contents, change):
            yield Level.WHEN_USED, "it is in a place of settings and names a command to run"
        if at_home and not newly and (new.executable or is_program_text(change.path)):
            yield Level.WHEN_USED, "it is a program among the settings in your home folder"
        if newly:
            yield Level.WHEN_USED, "it can be run as a program, and could not before"
        elif fresh and is_script(self._contents, change):
            yield Level.WHEN_USED, "it is a script"

    def _shadowing(self, change: Change) -> Iterator[Finding]:
        """New modules that Python would find before those of its standard library."""
        if change.old is not None and change.kind is not ChangeKind.RENAMED:
            return
        folder, _, name = change.where.rpartition("/")
        stem, dot, ending = name.partition(".")
        if stem == "__init__" and dot:
            folder, _, stem = folder.rpartition("/")
        elif change.type is FileType.LINK and not dot:
            pass
        elif ending.rpartition(".")[2] not in ("py", "pyc", "so"):
            return
        if stem in _TESTS or (stem not in sys.stdlib_module_names and stem not in TOOLS):
            return
        if folder.endswith("/__pycache__") or any(f"/{name}" in folder for name in INSTALLED):
            return  # Python looks there later, or not for this
        if folder == change.target or not self._is_package(folder):
            whose = "the installed" if stem in TOOLS else "its own"
            yield Level.BY_ITSELF, f"Python would load it in place of {whose} module {stem}"

    def _is_package(self, folder: str) -> bool:
        known = self._packages.get(folder)
        if known is None:
            # One that the same changes bring is no excuse: it may be there for that.
            file = f"{folder}/__init__.py"
            known = self._packages[folder] = file not in self._going and os.path.lexists(file)
        return known


def _gains(change: Change) -> bool:
    """Whether a change of mode, owner or attributes lets someone do more with the same bytes."""
    old, new = change.old, change.new
    if old is None or new is None:
        return True
    return bool(new.mode & ~old.mode & 0o133) or (old.uid, old.gid) != (new.uid, new.gid)


def _is_of_what_runs(names: list[str]) -> bool:
    """Whether all that is put in a folder runs by itself, by the name of the folder."""
    if ".git" in names:
        rest = names[names.index(".git") + 1 :]
        return not rest or rest[0] in ("hooks", "info", "modules", "worktrees")
    return Level.BY_ITSELF in fitting([*names, "any"])


def _lexical(change: Change, link: str) -> str | None:
    """Where a link points by its words; None if these could mislead (a step back after a name)."""
    steps = [step for step in link.split("/") if step not in ("", ".")]
    back = 0
    while back < len(steps) and steps[back] == "..":
        back += 1
    if ".." in steps[back:]:
        return None
    base = "/" if link.startswith("/") else change.where.rpartition("/")[0]
    return os.path.normpath(os.path.join(base, *steps))


def _leaves(target: str, place: str) -> bool:
    """Whether a place is out of the target, as written or by the host's links on the way."""
    if not f"{place}/".startswith(f"{target}/"):
        return True
    return not f"{os.path.realpath(place)}/".startswith(f"{target}/")
