"""Two runs over one folder: what a run changed, brought together with what others applied since.

After another run was applied, a layer shows that run's version as the old side of a file and its
own as the new one: applying that would take the other's lines back. Where the journals prove what
both began from (see `lineage`), the change becomes the host's version and the merge of the two; so
whoever shows, judges, saves or applies it does that with the merged bytes. Where lines overlap it
stays the run's own change of what it began from, and a conflict. What cannot be proved is a plain
conflict. Reads only.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import BinaryIO

from podbot.changes import _git_refs, given
from podbot.changes._lineage import Lineage, Noted, Step
from podbot.changes.applying.journal import Journal
from podbot.changes.diffs import three_way
from podbot.changes.diffs.text import shown_name
from podbot.changes.diffs.three_way import Choice, Merged
from podbot.changes.model import (
    FILE,
    LINK,
    RENAMED,
    Change,
    ChangeKind,
    ChangeSet,
    Contents,
    Descriptors,
    Merge,
    State,
)
from podbot.changes.select import folder_of
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass, replace
from podbot.sandbox import extents

MOST_HELD = 128 * 1024 * 1024
"""Bytes of merged files that are held at once; the files after that are plain conflicts."""


def together(
    changes: ChangeSet, journals: Collection[Journal], snapshot: bool, is_clock_true: bool
) -> ChangeSet:
    """The same changes, merged with what other runs brought to the host since this one began.

    ``journals`` tell of that. ``snapshot`` says that the sandbox could not see what came to the
    host meanwhile. If it could, and the clock is not to be believed, it may have seen any of it.
    """
    concerned = _concerned(changes)
    if not concerned:
        return changes
    past = Lineage(journals, concerned, changes.targets)
    return _Merging(changes, past, snapshot or changes.olds is not None, is_clock_true).result()


def _concerned(changes: ChangeSet) -> set[str]:
    """The paths at which something may have come or gone since the run began: a plan is long."""
    if changes.olds is not None:
        return {change.where for change in changes}
    folders: dict[str, bool] = {}
    found: set[str] = set()
    for change in changes:
        if change.old is not None and change.kind is not RENAMED:
            if change.old.ctime_ns > changes.since_ns:
                found.add(change.where)
            continue
        folder = folder_of(change.where)
        if folder not in folders:
            try:
                folders[folder] = os.lstat(folder).st_ctime_ns > changes.since_ns
            except OSError:
                folders[folder] = True
        if folders[folder]:
            found.add(change.where)
    return found


def decided(changes: ChangeSet, choices: Mapping[str, Sequence[Choice]]) -> ChangeSet:
    """The same changes with what a person chose, by absolute path: a choice for each overlap.

    Raises `ChangesError` (kind ``invalid``) for a path without overlaps, or with more or fewer.
    """
    choices = {
        where: [
            given.one_of(f"a choice for {shown_name(where)}", choice, Choice)
            for choice in ((chosen,) if isinstance(chosen, str) else chosen)
        ]
        for where, chosen in choices.items()
    }
    for where, chosen in choices.items():
        merge = changes.merges.get(where)
        count = len(merge.overlaps) if merge is not None else 0
        if not count or len(chosen) != count:
            raise ChangesError(
                f"{shown_name(where)} has {count} overlaps, and {len(chosen)} choices were given",
                kind=Kind.INVALID,
                remedy="give one choice for each of the overlaps in changes.merges",
            )
    texts = dict(_texts_of(changes.contents))
    merges = dict(changes.merges)
    inner = _inner(changes.contents)
    kept: list[Change] = []
    for change in changes:
        merge = merges.get(change.where)
        if change.where not in choices or merge is None:
            kept.append(change)
            continue
        assert merge.merged and merge.host and merge.new  # noqa: S101 - there are overlaps
        contents = merge.merged.decided(choices[change.where])
        host = replace(change, old=merge.host)
        new, kind = merge.new, ChangeKind.MODE
        if contents != _read(inner.open_old(host), merge.host):
            new, kind = _written(new, contents, merge.run), ChangeKind.MODIFIED
        if new == merge.host:
            continue  # that is what the host has
        kept.append(replace(host, kind=kind, new=new))
        texts[(change.target, change.path)] = _Texts(None, contents)
        merges[change.where] = replace(merge, merged=Merged((contents,)), new=new)
    return replace(changes, changes=tuple(kept), contents=_Contents(inner, texts), merges=merges)


class _NotMergedError(Exception):
    """Why two versions are a plain conflict."""


@dataclass(frozen=True, slots=True)
class _Version:
    """What a path held for a while, since when, and its bytes if it was a file."""

    state: State | None
    came_ns: int
    data: bytes | None


class _Merging:
    """One change set against the past of its paths."""

    def __init__(self, changes: ChangeSet, past: Lineage, snapshot: bool, is_clock_true: bool):
        self._changes, self._past = changes, past
        self._snapshot, self._is_clock_true = snapshot, is_clock_true
        self._merges: dict[str, Merge] = {}
        self._texts: dict[tuple[str, str], _Texts] = {}
        self._held = 0

    def result(self) -> ChangeSet:
        kept = [one for change in self._changes for one in self._looked_at(change)]
        if len(kept) == len(self._changes) and not self._merges:
            return self._changes
        return replace(
            self._changes,
            changes=tuple(kept),
            contents=_Contents(self._changes.contents, self._texts),
            merges=self._merges,
        )

    def _looked_at(self, change: Change) -> Iterable[Change]:
        """What is left of a change: itself, another in its place, or nothing."""
        if change.where not in self._past:
            return (change,)
        if change.old is None or change.kind is RENAMED:
            self._note_removed(change)
            return (change,)
        meeting = _Meeting(self._changes, change, self._past)
        steps = meeting.steps
        if not steps:
            return (change,)  # the host began with this, or nobody knows how it came there
        if change.new is not None and any(
            noted.is_all_of(change.new) for noted in meeting.noted
        ):  # fmt: skip
            return ()  # the host has all of it, merged with what another run had done
        runs = tuple(dict.fromkeys(s.run for s in steps[::-1] if s.run != self._changes.layer_id))
        try:
            merge = meeting.merge(runs, self._snapshot, self._is_clock_true)
            if merge.new == change.old and not merge.overlaps:
                return ()  # the host has all of it, from others
            return (self._hold(change, meeting, merge),)
        except _NotMergedError as error:
            self._merges[change.where] = Merge(runs, change.old, change.new, problem=str(error))
            return (change,)

    def _note_removed(self, change: Change) -> None:
        """What another run removed does not come back unasked."""
        steps = [
            step
            for step in self._past.back(change.where, None)
            if step.after is None and step.was is not None and step.run != self._changes.layer_id
        ]
        if steps and self._changes.olds is None:
            problem = f"run {steps[0].run} removed it"
            self._merges[change.where] = Merge((steps[0].run,), None, change.new, problem=problem)

    def _hold(self, change: Change, meeting: _Meeting, merge: Merge) -> Change:
        """A change with the merge for its new side; with what the run began from for its old."""
        assert merge.merged is not None  # noqa: S101 - else it is a problem
        contents = merge.merged.contents
        if contents is None:
            texts = _Texts(meeting.base.data or b"", None)
            kind = ChangeKind.ADDED if merge.base is None else ChangeKind.MODIFIED
            outcome = replace(change, kind=kind, old=merge.base)
        else:
            texts = _Texts(None, contents)
            kind = ChangeKind.MODE if contents == meeting.host_data else ChangeKind.MODIFIED
            outcome = replace(change, kind=kind, new=merge.new)
        self._held += len(texts.old or b"") + len(texts.new or b"")
        if self._held > MOST_HELD:
            raise _NotMergedError("there is too much to merge at once: apply some of it first")
        self._texts[(change.target, change.path)] = texts
        self._merges[change.where] = merge
        return outcome


class _Meeting:
    """A change of a run, and what others have made of its path since."""

    def __init__(self, changes: ChangeSet, change: Change, past: Lineage):
        self._changes, self._change, self._past = changes, change, past
        self._versions: list[_Version] = []
        self._last: _Version | None = None
        self.steps: list[Step] = []
        """The applications that led from what the run began with to what the host has."""
        self._problem: str | None = None
        self._walk()

    @property
    def noted(self) -> list[Noted]:
        """What of this run was merged there already."""
        own = (step for step in self.steps if step.run == self._changes.layer_id)
        return [step.merged for step in own if step.merged is not None]

    @property
    def base(self) -> _Version:
        """What the run began with."""
        assert self._last is not None  # noqa: S101 - asked for after the merge
        return self._last

    @cached_property
    def host_data(self) -> bytes | None:
        """The bytes that the host has."""
        host = self._change.old
        if host is None or host.type is not FILE or host.size > three_way.MAX_BYTES:
            return None
        try:
            return _read(_inner(self._changes.contents).open_old(self._change), host)
        except OSError:
            return None

    @cached_property
    def run_data(self) -> bytes | None:
        """The bytes that the run left."""
        run = self._change.new
        if run is None or run.type is not FILE or run.size > three_way.MAX_BYTES:
            return None
        try:
            return _read(_inner(self._changes.contents).open_new(self._change), run)
        except OSError:
            return None

    # The past

    def _walk(self) -> None:
        """Go back, application by application, to what the run began with."""
        where, state = self._change.where, self._change.old
        data = self.host_data
        walked: list[Step] = []
        for step in self._past.back(where, state):
            if self._is_origin(state, data, step):
                break
            walked.append(step)
            came = step.after.ctime_ns if step.after is not None else step.created_ns
            self._versions.append(_Version(state, came, data))
            # An application that changed only the attributes left the bytes alone.
            data = step.read_kept(three_way.MAX_BYTES) if step.kept is not None else data
            state = step.was
        else:
            if walked and not self._is_origin(state, data, None):
                self._problem = "the host changed it meanwhile, too"
        self.steps = walked
        self._last = _Version(state, 0, data)

    def _is_origin(self, state: State | None, data: bytes | None, step: Step | None) -> bool:
        """Whether the run began from this: it was there then, or is what the run itself left."""
        where = self._change.where
        if self._changes.olds is not None:
            return self._is_archived(state, data)
        if state is None:
            return step is None  # nobody is known to have removed anything there
        if step is not None and step.run == self._changes.layer_id:
            return step.merged is None
        changes = self._changes
        return self._past.was_before(where, state, changes.since_ns, changes.layer_id)

    def _is_archived(self, state: State | None, data: bytes | None) -> bool:
        facts = (self._changes.olds or {}).get(self._change.where)
        if facts is None or state is None:
            return facts is None and state is None
        if facts.type is not state.type or facts.type is not FILE or data is None:
            return facts.type is state.type is LINK and facts.link == state.link
        import hashlib  # much to load, and seldom needed

        return facts.sha256 == hashlib.sha256(data).hexdigest()

    # The merge

    def merge(self, runs: tuple[str, ...], snapshot: bool, is_clock_true: bool) -> Merge:
        """What both versions give; raises why that is a plain conflict."""
        host, run = self._change.old, self._change.new
        assert host is not None  # noqa: S101 - there are steps that led to it
        who = f"run {self.steps[0].run}"
        if run is None:
            raise _NotMergedError(f"{who} changed it, and this one removed it")
        if host.type is LINK and run.type is LINK and host.link == run.link:
            return Merge(runs, host, run, None, Merged((b"",)), host)  # both made the same link
        if host.type is not FILE or run.type is not FILE:
            raise _NotMergedError(f"{who} changed it too, and they are not both files")
        if self._problem is not None:
            raise _NotMergedError(f"{who} changed it too, and {self._problem}")
        if host.links > 1 or run.links > 1:
            raise _NotMergedError(f"{who} changed it too, and it has several names")
        # A file that was last written before a version came cannot have been made from that; nor
        # one that the run had already: inside, it hides what comes to the host.
        later = [v for v in self._versions if not is_clock_true or run.ctime_ns >= v.came_ns]
        if snapshot or self.noted:
            later = []
        oldest, *others = (self._merged(base, runs, who) for base in [self.base, *later])
        for other in others:
            same = other.new == oldest.new and _contents(other) == _contents(oldest)
            if not same or oldest.overlaps:
                raise _NotMergedError(
                    f"it was written after {who} was applied, and may have been made from either"
                    " version"
                )
        return oldest

    def _merged(self, base: _Version, runs: tuple[str, ...], who: str) -> Merge:
        host, run = self._change.old, self._change.new
        assert host is not None and run is not None  # noqa: S101 - both are files
        if base.state is not None and (base.state.type is not FILE or base.state.links > 1):
            raise _NotMergedError(
                f"{who} changed it too, and it was not a file with one name before"
            )
        if max(host.size, run.size) > three_way.MAX_BYTES:
            raise _NotMergedError(f"{who} changed it too, and {three_way.TOO_LARGE}")
        if base.state is not None and base.data is None:
            raise _NotMergedError(f"{who} changed it too, and what was there before is not kept")
        ours, theirs = self.host_data, self.run_data
        if ours is None or theirs is None:
            raise _NotMergedError(f"{who} changed it too, and it cannot be read as it was seen")
        if _git_refs.is_one(self._change.where) and theirs not in (ours, base.data):
            raise _NotMergedError(
                f"{who} changed it too; {_git_refs.fate_of_commits(ours, theirs)}"
            )
        merged = three_way.merge(base.data, ours, theirs)
        if merged.problem is not None:
            raise _NotMergedError(f"{who} changed it too, and {merged.problem}")
        new = _attributes(base.state, host, run, who)
        contents = merged.contents
        if contents is not None and contents != ours:
            new = _written(new, contents, run)
        return Merge(runs, host, run, base.state, merged, new)


def _contents(merge: Merge) -> bytes | None:
    return merge.merged.contents if merge.merged is not None else None


def _attributes(base: State | None, host: State, run: State, who: str) -> State:
    """What the host has, with the mode, owner and attributes that only the run changed."""
    found: dict[str, object] = {}
    for name in ("mode", "uid", "gid", "xattrs"):
        ours, theirs = getattr(host, name), getattr(run, name)
        was = getattr(base, name) if base is not None else None
        if ours in (was, theirs):
            found[name] = theirs
        elif theirs == was:
            found[name] = ours
        else:
            what = "mode" if name == "mode" else "owner" if name != "xattrs" else "attributes"
            raise _NotMergedError(f"{who} changed its {what} too")
    return replace(host, **found)  # type: ignore[arg-type]  # each is of its field's type


def _written(state: State, contents: bytes, run: State | None) -> State:
    """A state with other contents: not older than either version."""
    time = max(state.mtime_ns, run.mtime_ns if run is not None else 0)
    return replace(state, size=len(contents), mtime_ns=time)


def _read(file: BinaryIO, state: State) -> bytes | None:
    """The bytes of a file, None if it is not what was looked at any more."""
    with file:
        data = extents.exactly(file, state.size + 1)
        facts = os.fstat(file.fileno())
    same = (facts.st_ino, facts.st_dev, facts.st_mtime_ns, len(data)) == (
        state.inode, state.device, state.mtime_ns, state.size,
    )  # fmt: skip
    return data if same else None


# Contents


@dataclass(frozen=True, slots=True)
class _Texts:
    """What stands for a side of a change; None leaves it as it is."""

    old: bytes | None
    new: bytes | None


class _Contents:
    """The bytes of both sides, some of them merged."""

    def __init__(self, inner: Contents, texts: Mapping[tuple[str, str], _Texts]):
        self.inner, self.texts = inner, texts

    def open_old(self, change: Change) -> BinaryIO:
        texts = self.texts.get((change.target, change.path))
        if texts is None or texts.old is None:
            return self.inner.open_old(change)
        return io.BytesIO(texts.old)

    def open_new(self, change: Change) -> BinaryIO:
        texts = self.texts.get((change.target, change.path))
        if texts is None or texts.new is None:
            return self.inner.open_new(change)
        return io.BytesIO(texts.new)

    def new_descriptor(self, change: Change) -> int:
        texts = self.texts.get((change.target, change.path))
        if texts is not None and texts.new is not None:
            raise OSError(f"{change.path} is merged: it has no file of its own")
        if isinstance(self.inner, Descriptors):
            return self.inner.new_descriptor(change)
        with self.inner.open_new(change) as file:
            return os.dup(file.fileno())


def _inner(contents: Contents) -> Contents:
    return contents.inner if isinstance(contents, _Contents) else contents


def _texts_of(contents: Contents) -> Mapping[tuple[str, str], _Texts]:
    return contents.texts if isinstance(contents, _Contents) else {}
