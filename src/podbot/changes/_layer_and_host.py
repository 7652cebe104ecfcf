"""One target of a layer, both sides held open: what the sandbox left, and what the host has.

Tells what is at a path on either side, and whether two files hold the same. What that means, a
change or none, is for `podbot.changes.capture` to say. Reads only, except that what a guest closed
to its owner is opened: a folder for good, in a layer that nobody uses, and a file for a moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import BinaryIO

from podbot.changes import _git_index, next_steps
from podbot.changes.model import State, gone
from podbot.changes.tree import Place, Tree
from podbot.errors import ChangesError, Kind
from podbot.sandbox import extents
from podbot.sandbox.layers import Layer, closed


class LayerAndHost:
    """The upper folder of a target, and the target, None if it is not there any more."""

    def __init__(self, layer: Layer, index: int):
        self.target = layer.targets[index]
        self.notes: list[str] = []
        self._layer, self._index = layer, index
        self._live = layer.live
        try:
            self.upper = Tree(layer.upper(index))
        except OSError as error:
            raise ChangesError(
                f"layer {layer.id} cannot be read: {error.strerror}",
                kind=Kind.UNKNOWN_ID,
                remedy=next_steps.RUNS,
            ) from None
        self.lower: Tree | None = None
        try:
            self.lower = Tree(self.target)
        except OSError as error:
            self.notes.append(f"{gone(self.target, error)}; what was deleted in it is not seen")
        self._hidden = {
            os.path.relpath(path, self.target)
            for path in layer.hidden
            if f"{path}/".startswith(f"{self.target}/")
        }
        self._modes = closed.modes(layer.path)
        self._unseen: set[str] = set()  # in folders of the host's that are closed to us

    def where(self, path: str) -> str:
        """The path on the host."""
        return f"{self.target}/{path}" if path else self.target

    # The host's

    def old(self, path: str) -> State | None:
        """What the host has at a path, None if it has nothing, or nothing that can be seen."""
        if self.lower is None or self._is_hidden(path):
            return None
        try:
            return self.lower.state(path)
        except PermissionError:
            self._unseen.add(path)
            return None
        except OSError:
            return None  # a step on the way is a link: nothing of ours

    def names_that_went(self, folder: str) -> set[str] | None:
        """What the host has in a folder of which the layer keeps nothing; None if it is closed."""
        assert self.lower is not None  # noqa: S101 - who asks has seen the folder there
        try:
            return {*self.lower.names(folder)}
        except PermissionError:
            return None

    def is_unseen(self, path: str) -> bool:
        """Whether the host may have it, in a folder that is closed to us."""
        if self._unseen and path.rpartition("/")[0] in self._unseen:
            self._unseen.add(path)  # outer paths are asked for first
        return path in self._unseen

    def closed_above(self, path: str) -> str:
        """The folder that is closed, of something that cannot be seen for it."""
        while (path := path.rpartition("/")[0]) and path in self._unseen:
            pass
        return path

    def holds_hidden(self, path: str) -> bool:
        """Whether a folder of the host's holds what the policy hid."""
        return bool(self._hidden) and any(
            hidden.startswith(f"{path}/") for hidden in self._existing_hidden()
        )

    def _is_hidden(self, path: str) -> bool:
        return bool(self._hidden) and any(
            path == hidden or path.startswith(f"{hidden}/") for hidden in self._hidden
        )

    def _existing_hidden(self) -> list[str]:
        return [
            hidden
            for hidden in self._hidden
            if self.lower is not None and self.lower.facts(hidden) is not None
        ]

    # The layer's

    def new(self, path: str, facts: os.stat_result) -> State | None:
        """What the sandbox left at a path, with the mode and owner it would have on the host."""
        try:
            with self._let_in(path, facts):
                state = self.upper.state_of(path, facts)
        except FileNotFoundError:
            return None
        mode = self._modes.get(f"{self._index}.upper/{path}") if self._modes else None
        if mode is None and self._layer.traits.nobody is None:
            return state
        from dataclasses import replace

        if mode is not None:
            state = replace(state, mode=mode)
        return self._owned(path, state)

    def _owned(self, path: str, state: State) -> State:
        """With the owner it would have on the host, in a layer that belongs to nobody.

        Root makes nothing in there: what seems to be root's was nobody's, in a folder shown with
        both trading places.
        """
        if self._layer.traits.nobody is None or state.uid not in (self._layer.traits.nobody, 0):
            return state
        from dataclasses import replace

        like = self.old(path) or self.old("")
        return state if like is None else replace(state, uid=like.uid, gid=like.gid)

    def new_names(self, folder: str) -> list[str]:
        """What the layer has in a folder, which is opened up if the guest closed it."""
        try:
            names = self.upper.names(folder)
            if names:  # of a folder that may be read but not entered, nothing more can be seen
                self.upper.facts(f"{folder}/{names[0]}" if folder else names[0])
            return names
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            facts = self.upper.facts(folder)
            if self._live or facts is None:
                note = f"{folder} is closed while the sandbox lives"
                self.notes += [note] if note not in self.notes else []
                return []
            inner = f"{self._index}.upper/{folder}"
            mode = stat.S_IMODE(facts.st_mode)
            # (the folder itself by its descriptor alone: a step more would need its own rights)
            place = self.upper.place(folder) if folder else Place(self.upper.folder(""))
            closed.open_up(self._layer.path, inner, place, mode)
            self._modes = closed.modes(self._layer.path)
            self.upper.forget()
            return self.upper.names(folder)

    def is_opaque(self, path: str) -> bool:
        """Whether a folder of the layer shows nothing of what the host has in it."""
        return self._mark("opaque", path) == b"y"

    def is_from_host(self, path: str) -> bool:
        """Whether something in the layer was copied up from the host, from whatever path."""
        return self._mark("origin", path) is not None

    def _mark(self, name: str, path: str) -> bytes | None:
        place = self.upper.place(path)
        try:
            attribute = f"{self._layer.traits.marks}.overlay.{name}"
            with self._let_in(path):
                return os.getxattr(place, attribute, follow_symlinks=False)
        except OSError:
            return None

    @contextmanager
    def _let_in(self, path: str, facts: os.stat_result | None = None) -> Iterator[None]:
        """Attributes can be read only of what may be read: open up what the guest closed."""
        facts = facts or self.upper.facts(path)
        mode = facts.st_mode if facts is not None else 0
        if stat.S_ISDIR(mode) and not mode & 0o400:
            self.new_names(path)
        if not stat.S_ISREG(mode) or mode & 0o400 or os.geteuid() == 0:
            yield
            return
        place = self.upper.place(path)
        os.chmod(place, stat.S_IMODE(mode) | 0o400, follow_symlinks=False)
        try:
            yield
        finally:
            os.chmod(place, stat.S_IMODE(mode), follow_symlinks=False)

    # Contents

    def same_bytes(
        self, path: str, old: State, new: State, source: str | None = None
    ) -> bool | None:
        """Whether a file has what the host has there, or in ``source``; None if it cannot be read.

        ``old`` and ``new`` are the states of the two.
        """
        if old.size != new.size:
            return False
        if old.size == 0:
            return True
        assert self.lower is not None  # noqa: S101 - there is an old state
        try:
            with self.lower.open(source or path) as before, self.open_new(path) as after:
                return extents.same(before, after)
        except OSError:
            return None

    def lists_the_same(self, path: str) -> bool:
        """Whether it is an index of git's that lists just what the host's lists.

        Git writes it anew whenever it looks, here or there: that is no one's change.
        """
        if self.lower is None or not _git_index.is_index(self.where(path)):
            return False
        try:
            with self.lower.open(path) as before, self.open_new(path) as after:
                return _git_index.same_listing(before, after)
        except OSError:
            return False

    def open_new(self, path: str) -> BinaryIO:
        """A file of the upper layer; one that the guest closed is opened for a moment."""
        return FileIO(self.new_descriptor(path), "rb")

    def new_descriptor(self, path: str) -> int:
        """The same as a bare descriptor."""
        try:
            return self.upper.descriptor(path)
        except PermissionError:
            facts = self.upper.facts(path)
            if facts is None or not stat.S_ISREG(facts.st_mode):
                raise
            with self._let_in(path, facts):
                return self.upper.descriptor(path)
