"""Containers: make, start, look at, signal, wait for, remove.

Each verb is one call to the engine. What is made carries podbot's labels and is compared with its
profile before anyone may start it. Removing kills first: an idle main process would ignore the
polite signal for ten seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from podbot.engine import _requests, _seccomp
from podbot.engine import labels as marks
from podbot.engine._resolved import Resolved, compare, filters
from podbot.engine.http import replies
from podbot.engine.http.client import Call, Purpose
from podbot.engine.http.exchange import quoted
from podbot.engine.http.hijacked import Hijacked
from podbot.engine.http.replies import Fields
from podbot.engine.specs import ContainerSpec
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass

if TYPE_CHECKING:
    from podbot.engine._archives import Source
    from podbot.engine._unpacking import Unpacked, UnpackLimits
    from podbot.engine.engine import Engine
    from podbot.engine.http.client import Streaming

START_SECONDS = 120.0
REMOVE_SECONDS = 60.0
PASSING = ("timed out waiting for file", "device or resource busy", "is already in progress")
"""What an engine says when a container can be removed a moment later, on a busy machine above all:
Podman's monitor has not noted the end within 5 s, though it was killed all the same; what the
container had mounted is being taken down; another removal of it is under way."""
TAKE_BACK_SECONDS = 1.0
"""How long to look for a container whose making was interrupted."""

_REMEDIES = {
    Kind.CONTAINER_NOT_FOUND: "list what runs with `podbot ps`",
    Kind.IMAGE_NOT_FOUND: "make one with `podbot image build`, or a small one with `podbot image "
    "build --small --from scratch` (seconds, no network), or pull it",
    Kind.NAME_IN_USE: "choose another name, or remove that container first (`podbot stop NAME`)",
    Kind.CONTAINER_NOT_RUNNING: "start it first, or let it go on if it is paused",
    Kind.UNSUPPORTED: "an engine without root needs control groups of version 2 for this",
}


@dataclass(frozen=True, slots=True)
class Created:
    """A container that was made and not started.

    ``unenforced`` are limits of its profile that this engine cannot hold it to; ``runtime`` is the
    name of what will run it.
    """

    id: str
    warnings: tuple[str, ...] = ()
    unenforced: tuple[str, ...] = ()
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What the engine says of a container. ``details`` is all it says, as it says it."""

    id: str
    name: str
    image: str
    status: str
    running: bool
    paused: bool
    pid: int
    exit_code: int
    oom_killed: bool
    error: str
    created_at: str
    started_at: str
    finished_at: str
    tty: bool
    labels: Mapping[str, str]
    details: Fields


@dataclass(frozen=True, slots=True)
class ContainerSummary:
    """A line of the list of containers."""

    id: str
    name: str
    image: str
    status: str
    created: int
    labels: Mapping[str, str]
    image_id: str = ""

    @property
    def running(self) -> bool:
        """Whether it runs, paused or not."""
        return self.status in ("running", "paused")


class Containers:
    """The containers of one engine. ``container`` is an id or a name, everywhere."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def create(self, spec: ContainerSpec) -> Created:
        """Make a container; if what was made is not what was asked for, it is removed again.

        Kinds: ``image_not_found``, ``name_in_use``, ``profile_mismatch``, ``create_failed``,
        ``unsupported`` for a filter of system calls that this engine cannot be given.
        """
        facts = self._engine.facts
        token = os.urandom(8).hex()
        labels = {marks.OWNER: marks.owner_label(), marks.MADE: token, **spec.labels}
        purpose = Purpose(
            f"make a container of {spec.image}",
            Kind.CREATE_FAILED,
            spec.name or spec.image,
            missing=Kind.IMAGE_NOT_FOUND,
            conflict=Kind.NAME_IN_USE,
            remedies=_REMEDIES,
        )
        seccomp = _seccomp.given(spec.profile, facts)
        if facts.is_podman:
            body = _requests.podman_request(spec, labels, seccomp)
            call = Call("POST", self._engine.libpod("/containers/create"), purpose, json=body)
        else:
            body = _requests.docker_request(spec, labels, seccomp)
            query = {"name": spec.name} if spec.name else {}
            path = self._engine.common("/containers/create")
            call = Call("POST", path, purpose, query, json=body)
        try:
            answer = self._engine.client.call(call)
        except BaseException as error:
            if not isinstance(error, ContainerError) or error.kind is Kind.CONNECTION_FAILED:
                self._take_back(token)
            raise
        reply = replies.fields(answer.json())
        container = replies.text(reply, "Id")
        if not container:
            raise replies.nonsense("it made a container without an id")
        try:
            found = self.verify(container, spec)
        except BaseException:
            self.remove(container)
            raise
        warnings = tuple(replies.visible(line) for line in replies.texts(reply, "Warnings"))
        return Created(container, warnings, found.unenforced, found.runtime)

    def _take_back(self, token: str) -> None:
        """Remove what an engine goes on to make for whom was interrupted, or cut off."""
        deadline = time.monotonic() + TAKE_BACK_SECONDS
        with suppress(ContainerError):  # the engine is gone: `podbot gc` finds it
            while True:
                found = self.list({marks.MADE: token})
                for each in found:
                    self.remove(each.id)
                if found or time.monotonic() > deadline:
                    return
                time.sleep(0.02)

    def start(self, container: str) -> None:
        """Start it; one that runs already is left as it is."""
        self._post(container, "start", "start", Kind.START_FAILED, seconds=START_SECONDS)

    def inspect(self, container: str) -> ContainerState:
        """Look at it. Kind ``container_not_found``."""
        tail = f"/containers/{quoted(container)}/json"
        # Podman's own reply tells which capabilities and which runtime came out of the request.
        engine = self._engine
        path = engine.libpod(tail) if engine.facts.is_podman else engine.common(tail)
        answer = engine.client.call(Call("GET", path, self._purpose("look at", container)))
        return read_state(replies.fields(answer.json()))

    def verify(self, container: str, spec: ContainerSpec) -> Resolved:
        """See whether it is what the spec says; kind ``profile_mismatch`` if not.

        `create` does it. Some mounts, and Podman's filter of system calls, can be seen only once
        it runs: do it again after `start`.
        """
        found = compare(spec, self._engine.facts, self.inspect(container).details)
        found.check(container)
        return found

    def verify_filter(self, container: str, spec: ContainerSpec) -> None:
        """See which filter of system calls it runs under; kind ``profile_mismatch`` if not ours.

        The part of `verify` that only one that was started can tell, where its engine is Podman.
        """
        facts, profile = self._engine.facts, spec.profile
        if facts.is_podman and facts.local and not profile.privileged:
            found = filters(profile, facts, self.inspect(container).details)
            Resolved(tuple(found), ()).check(container)

    def wait(self, container: str, seconds: float | None = None) -> int:
        """Wait until its main process has ended; gives its exit status. Kind ``timeout``."""
        purpose = self._purpose("wait for", container)
        path = self._engine.common(f"/containers/{quoted(container)}/wait")
        call = Call("POST", path, purpose, seconds=seconds)
        try:
            reply = replies.fields(self._engine.client.call(call).json())
        except ContainerError as error:
            if isinstance(error.__cause__, TimeoutError):
                raise ContainerError(
                    f"container {container} still runs after {seconds:g} s",
                    kind=Kind.TIMEOUT,
                    remedy="wait longer, or stop it",
                    subject=container,
                ) from None
            raise
        return replies.whole(reply, "StatusCode")

    def stop(self, container: str, seconds: int = 10) -> None:
        """Ask its main process to end, and kill what is left after ``seconds``."""
        query = {"t": str(seconds)}
        self._post(container, "stop", "stop", query=query, seconds=seconds + REMOVE_SECONDS)

    def kill(self, container: str, signal: str = "KILL") -> None:
        """Send its main process a signal."""
        self._post(container, "kill", "kill", query={"signal": signal})

    def pause(self, container: str) -> None:
        """Freeze everything in it."""
        self._post(container, "pause", "pause")

    def unpause(self, container: str) -> None:
        """Let it go on."""
        self._post(container, "unpause", "resume")

    def rename(self, container: str, name: str) -> None:
        """Give it another name. Kind ``name_in_use``."""
        self._post(container, "rename", "rename", query={"name": name})

    def remove(self, container: str, *, missing_ok: bool = True) -> bool:
        """Kill it and remove it with its unnamed volumes; says whether there was one."""
        path = f"/containers/{quoted(container)}"
        query = {"force": "true", "v": "true"}
        if self._engine.facts.is_podman:
            path, query["timeout"] = self._engine.libpod(path), "0"
        else:
            path = self._engine.common(path)
        purpose = self._purpose("remove", container)
        call = Call("DELETE", path, purpose, query, seconds=REMOVE_SECONDS)
        deadline, asked_before = time.monotonic() + REMOVE_SECONDS, False
        while True:
            try:
                self._engine.client.call(call)
            except ContainerError as error:
                if error.kind == Kind.CONTAINER_NOT_FOUND and (missing_ok or asked_before):
                    return asked_before
                if not _passes(error) or time.monotonic() > deadline:
                    raise
            else:
                return True
            asked_before = True
            time.sleep(0.1)

    def list(
        self, labels: Mapping[str, str | None] | None = None, *, all: bool = True
    ) -> tuple[ContainerSummary, ...]:
        """Those with all of these labels (``None``: with any value); running ones only if not
        ``all``."""
        wanted = [
            name if value is None else f"{name}={value}" for name, value in (labels or {}).items()
        ]
        query = {"all": "true" if all else "false"}
        if wanted:
            query["filters"] = json.dumps({"label": wanted})
        path = self._engine.common("/containers/json")
        answer = self._engine.client.call(Call("GET", path, Purpose("list containers"), query))
        found = [read_summary(entry) for entry in replies.objects(answer.json())]
        # Looked at again: whoever passes over the filter would have others' containers removed.
        return tuple(each for each in found if _has(each.labels, labels or {}))

    def attach(self, container: str, *, stdin: bool = True) -> Hijacked:
        """Join the main process's streams. Without a terminal, what comes is in `Frames`.

        Attach before `start` to miss nothing.
        """
        query = {"stream": "1", "stdout": "1", "stderr": "1", "stdin": "1" if stdin else "0"}
        path = self._engine.common(f"/containers/{quoted(container)}/attach")
        return self._engine.client.hijack(
            Call("POST", path, self._purpose("attach to", container), query)
        )

    def put_archive(self, container: str, path: str, archive: Source) -> None:
        """Unpack a tar into a folder of it; see `podbot.engine.pack`. Kind ``upload_failed``."""
        from podbot.engine import _archives

        _archives.put(self._engine, container, path, archive)

    def get_archive(self, container: str, path: str) -> Streaming:
        """The tar of a path in it, as it comes, and as hostile as what runs there."""
        from podbot.engine import _archives

        return _archives.get(self._engine, container, path)

    def download(
        self, container: str, path: str, destination: str, limits: UnpackLimits | None = None
    ) -> Unpacked:
        """Copy a file or folder of it to a place on the host that does not exist yet."""
        from podbot.engine import _archives

        return _archives.download(self._engine, container, path, destination, limits)

    def resize(self, container: str, rows: int, columns: int) -> None:
        """Tell its terminal how large it is."""
        query = {"h": str(rows), "w": str(columns)}
        self._post(container, "resize", "resize the terminal of", query=query)

    def _post(
        self,
        container: str,
        verb: str,
        doing: str,
        kind: Kind = Kind.ENGINE_FAILED,
        *,
        query: Mapping[str, str] | None = None,
        seconds: float = REMOVE_SECONDS,
    ) -> None:
        path = self._engine.common(f"/containers/{quoted(container)}/{verb}")
        purpose = self._purpose(doing, container, kind)
        self._engine.client.call(Call("POST", path, purpose, query or {}, seconds=seconds))

    def _purpose(self, doing: str, container: str, kind: Kind = Kind.ENGINE_FAILED) -> Purpose:
        return Purpose(
            f"{doing} container {container}",
            kind,
            container,
            missing=Kind.CONTAINER_NOT_FOUND,
            conflict=Kind.NAME_IN_USE if doing == "rename" else Kind.CONTAINER_NOT_RUNNING,
            remedies=_REMEDIES,
        )


def _passes(error: ContainerError) -> bool:
    return any(words in error.message for words in PASSING)


def read_state(found: Fields) -> ContainerState:
    """From what ``inspect`` says, of either engine."""
    state, config = replies.below(found, "State"), replies.below(found, "Config")
    return ContainerState(
        id=replies.text(found, "Id"),
        name=replies.text(found, "Name").lstrip("/"),
        image=replies.text(config, "Image"),
        status=replies.text(state, "Status"),
        running=replies.flag(state, "Running"),
        paused=replies.flag(state, "Paused"),
        pid=replies.whole(state, "Pid"),
        exit_code=replies.whole(state, "ExitCode"),
        oom_killed=replies.flag(state, "OOMKilled"),
        error=replies.visible(replies.text(state, "Error")),
        created_at=replies.text(found, "Created"),
        started_at=replies.text(state, "StartedAt"),
        finished_at=replies.text(state, "FinishedAt"),
        tty=replies.flag(config, "Tty"),
        labels=replies.text_map(config, "Labels"),
        details=found,
    )


def read_summary(found: Fields) -> ContainerSummary:
    """From a line of the list."""
    names = replies.texts(found, "Names")
    return ContainerSummary(
        id=replies.text(found, "Id"),
        name=names[0].lstrip("/") if names else "",
        image=replies.text(found, "Image"),
        status=replies.text(found, "State"),
        created=replies.whole(found, "Created"),
        labels=replies.text_map(found, "Labels"),
        image_id=replies.text(found, "ImageID"),
    )


def _has(there: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(name in there and value in (None, there[name]) for name, value in wanted.items())
