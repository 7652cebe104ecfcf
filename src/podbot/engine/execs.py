"""Commands in a container that runs: their streams, their output, their end, and signals to them.

For people and set-up steps; tools of a sandbox go through its guest, which is a hundred times
quicker. Exit statuses follow one rule everywhere, `exit_status`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from podbot.engine.http import replies
from podbot.engine.http.client import Call, Purpose
from podbot.engine.http.exchange import quoted
from podbot.engine.http.hijacked import STDERR, STDOUT, Hijacked
from podbot.engine.specs import check_environment, check_words, missing
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass, field, frozen_dict, replace

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

OUTPUT_LIMIT = 1024 * 1024
FIRST_LOOK = 0.005
LONGEST_LOOK = 0.25
# A stream ends a moment before the engine has noted the exit status.
NOTED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """A command to run in a container. ``None`` means as the container has it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=frozen_dict)
    workdir: str | None = None
    user: str | None = None
    tty: bool = False
    stdin: bool = False

    def __post_init__(self) -> None:
        if not self.argv:
            raise missing("command", "name a command to run")
        check_words("command", self.argv)
        check_environment(self.env)


@dataclass(frozen=True, slots=True)
class ExecState:
    """What the engine says of a command."""

    running: bool
    exit_code: int | None
    pid: int


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """A command that ended, with what it printed; ``truncated`` if that was more than kept."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


class Execs:
    """Commands in the containers of one engine."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def create(self, container: str, spec: ExecSpec, *, attached: bool = True) -> str:
        """Prepare a command; gives its id. Kinds ``container_not_found``/``_not_running``."""
        body = {
            "Cmd": list(spec.argv),
            "Env": [f"{name}={value}" for name, value in spec.env.items()],
            "Tty": spec.tty and attached,
            "AttachStdin": spec.stdin and attached,
            "AttachStdout": attached,
            "AttachStderr": attached,
        }
        if spec.workdir is not None:
            body["WorkingDir"] = spec.workdir
        if spec.user is not None:
            body["User"] = spec.user
        path = self._engine.common(f"/containers/{quoted(container)}/exec")
        purpose = Purpose(
            f"run {replies.visible(spec.argv[0])} in container {container}",
            Kind.EXEC_FAILED,
            container,
            missing=Kind.CONTAINER_NOT_FOUND,
            conflict=Kind.CONTAINER_NOT_RUNNING,
            remedies={
                Kind.CONTAINER_NOT_FOUND: "list what runs with `podbot ps`",
                Kind.CONTAINER_NOT_RUNNING: "start it first, or let it go on if it is paused",
            },
        )
        reply = replies.fields(
            self._engine.client.call(Call("POST", path, purpose, json=body)).json()
        )
        found = replies.text(reply, "Id")
        if not found:
            raise replies.nonsense("it made an exec without an id")
        return found

    def start(
        self, exec_id: str, *, tty: bool = False, size: tuple[int, int] | None = None
    ) -> Hijacked:
        """Start it, joined to its streams. Without a terminal, what comes is in `Frames`.

        ``size``: how many rows and columns its terminal has from the start. Docker before 23
        heeds it not; `resize` does there, a moment later.
        """
        body: dict[str, object] = {"Detach": False, "Tty": tty}
        if size is not None:
            # Podman's words, and Docker's.
            body |= {"h": size[0], "w": size[1], "ConsoleSize": list(size)}
        call = Call("POST", self._path(exec_id, "start"), self._purpose("start"), json=body)
        return self._engine.client.hijack(call)

    def start_detached(self, exec_id: str) -> None:
        """Start it without streams."""
        body = {"Detach": True, "Tty": False}
        call = Call("POST", self._path(exec_id, "start"), self._purpose("start"), json=body)
        self._engine.client.call(call)

    def resize(self, exec_id: str, rows: int, columns: int) -> None:
        """Tell its terminal how large it is."""
        query = {"h": str(rows), "w": str(columns)}
        purpose = self._purpose("resize the terminal of")
        self._engine.client.call(Call("POST", self._path(exec_id, "resize"), purpose, query))

    def signal(self, container: str, spec: ExecSpec, number: int, *, whole: bool = False) -> bool:
        """Send a signal to the group of a command that was `signalling.marked`, or with ``whole``
        to all it started; whether it was found, which takes a moment after its start.

        Kind ``unsupported`` if there is no way to it.
        """
        from podbot.engine import signalling

        return signalling.send(self._engine, container, spec, number, whole=whole)

    def inspect(self, exec_id: str) -> ExecState:
        """Look at it."""
        call = Call("GET", self._path(exec_id, "json"), self._purpose("look at"))
        found = replies.fields(self._engine.client.call(call).json())
        code = found.get("ExitCode")
        return ExecState(
            running=replies.flag(found, "Running"),
            exit_code=None if code is None else replies.whole(found, "ExitCode"),
            pid=replies.whole(found, "Pid"),
        )

    def wait(self, exec_id: str, seconds: float | None = None) -> int:
        """Wait until it has ended; gives its `exit_status`. Kinds ``timeout``, ``exec_failed``."""
        deadline = None if seconds is None else time.monotonic() + seconds
        pause = FIRST_LOOK
        while True:
            state = self.inspect(exec_id)
            if not state.running:
                return exit_status(state.exit_code, exec_id)
            if deadline is not None and time.monotonic() > deadline:
                raise ContainerError(
                    f"exec {exec_id} still runs after {seconds:g} s",
                    kind=Kind.TIMEOUT,
                    remedy="wait longer, or stop its container",
                    subject=exec_id,
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_LOOK)

    def run_detached(self, container: str, spec: ExecSpec, seconds: float | None = None) -> int:
        """Run a command without the caller's streams and wait for it; gives its exit status.

        Kinds of `refusals.error` if Podman did not start it; Docker refuses the call.
        """
        if not self._engine.facts.is_podman:
            exec_id = self.create(container, spec, attached=False)
            self.start_detached(exec_id)
            return self.wait(exec_id, seconds)
        # Podman notes the end of a detached command minutes later. So its output is read and
        # thrown away, which ends with it; its input is empty either way.
        from podbot.engine import refusals

        exec_id = self.create(container, replace(spec, tty=False, stdin=False))
        kept = _Kept(refusals.HELD)
        with self.start(exec_id) as stream:
            _collect(stream, None, kept, seconds)
        status = self.wait(exec_id, NOTED_SECONDS)
        if status in refusals.STATUSES and refusals.is_refusal(kept.stderr, spec):
            raise refusals.error(kept.stderr.decode("utf-8", "replace"), container, spec)
        return status

    def run(
        self, container: str, spec: ExecSpec, *, stdin: bytes = b"", seconds: float | None = None
    ) -> ExecOutput:
        """Run a command and keep what it prints, `OUTPUT_LIMIT` bytes of each stream.

        Kind ``timeout`` after ``seconds``: the command goes on, its streams are let go of.
        """
        if spec.tty:
            raise ContainerError("a terminal has one stream: start it attached", kind=Kind.INVALID)
        asked = replace(spec, stdin=True) if stdin else spec
        exec_id = self.create(container, asked)
        kept = _Kept(OUTPUT_LIMIT)
        with self.start(exec_id) as stream:
            _collect(stream, stdin if asked.stdin else None, kept, seconds)
        code = self.wait(exec_id, NOTED_SECONDS)
        return ExecOutput(code, kept.stdout, kept.stderr, kept.truncated)

    def _path(self, exec_id: str, verb: str) -> str:
        return self._engine.common(f"/exec/{quoted(exec_id)}/{verb}")

    def _purpose(self, doing: str) -> Purpose:
        return Purpose(f"{doing} a command", Kind.EXEC_FAILED, conflict=Kind.CONTAINER_NOT_RUNNING)


class _Kept:
    """The beginning of both output streams."""

    def __init__(self, limit: int):
        self._limit = limit
        self._parts: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        self.truncated = False

    def take(self, stream: int, data: bytes) -> None:
        """Keep what there is room for."""
        part = self._parts[stream]
        room = self._limit - len(part)
        part += data[:room]
        self.truncated = self.truncated or len(data) > room

    @property
    def stdout(self) -> bytes:
        """What was kept of standard output."""
        return bytes(self._parts[STDOUT])

    @property
    def stderr(self) -> bytes:
        """What was kept of standard error."""
        return bytes(self._parts[STDERR])


def _collect(stream: Hijacked, stdin: bytes | None, kept: _Kept, seconds: float | None) -> None:
    """Send ``stdin`` and keep what comes, until the command's streams end. Kind ``timeout``."""
    late = threading.Event()

    def send() -> None:
        with suppress(OSError):  # it takes no more input; what it says until it ends still counts
            stream.sendall(stdin or b"")
            stream.close_write()

    def give_up() -> None:
        late.set()
        stream.hang_up()

    sender = threading.Thread(target=send, daemon=True)
    timer = threading.Timer(seconds or 0, give_up)
    used = [sender] * (stdin is not None) + [timer] * (seconds is not None)
    for thread in used:
        thread.start()
    try:
        for number, part in stream.parts(framed=True):
            kept.take(number, part)
    except ContainerError:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
        stream.hang_up()  # whoever still sends is not waited for
        for thread in used:
            thread.join()
    if late.is_set():
        raise ContainerError(
            "the command did not end in time",
            kind=Kind.TIMEOUT,
            remedy="give it more time, or stop its container",
        )


def exit_status(code: int | None, subject: str | None = None) -> int:
    """An exit status from what an engine reports: 0 to 255 as it is, less is 1, more is 255."""
    if code is None:
        raise ContainerError(
            "the engine says that the command ended, but not how",
            kind=Kind.EXEC_FAILED,
            remedy="look at the container's state: it may have ended too",
            subject=subject,
        )
    if code < 0:
        return 1
    return min(code, 255)
