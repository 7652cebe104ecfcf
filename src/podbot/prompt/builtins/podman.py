"""`PodmanShellSection`: one tool, ``podman_shell``, that starts, uses and stops a container.

The small sibling of `podbot.tools.podman`: no files, no slices, just a shell in a container that
is there while it is needed. Here a command that fails makes a failing result. The container is the
container backend's, hardened and without network; this module only decides when there is one.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from podbot.errors import Kind, PodbotError, PromptError, SandboxError, ToolValidationError
from podbot.prompt.result import ToolResult
from podbot.prompt.section import CONTAINER_SHELL, Section
from podbot.prompt.tool import Tool
from podbot.runtime.given import expect
from podbot.runtime.logging import StructuredLogger, get_logger

if TYPE_CHECKING:
    from podbot.engine import Engine
    from podbot.prompt.context import ToolContext
    from podbot.runtime.events import EventBus
    from podbot.runtime.session import Session
    from podbot.sandbox.container.sandbox import ContainerSandbox
    from podbot.sandbox.values import ExecResult

DEFAULT_IMAGE = "docker.io/library/python:3.12"
EXEC_SECONDS = 60
"""How long a command may take when the call does not say."""
MOST_EXEC_SECONDS = 3600
OUTPUT_BYTES = 32 * 1024
"""What is shown of each stream, unless the section is told otherwise."""
TRUNCATED = "[truncated]"

Action = Literal["start", "exec", "stop"]

_PREFIX = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_TEXT = """\
`podman_shell` gives you a shell in a Linux container of your own, without network and {means}.
`exec` runs a shell command there, and starts the container if it does not run; `start` and `stop`
do only that. Files outlive a command, and are gone when the container is stopped. A command that
fails is reported as a failure, with what it wrote."""


@dataclass(frozen=True, slots=True)
class PodmanShellParams:
    """What to do with the container."""

    action: Action = field(
        metadata={"description": "start the container, exec a command in it, or stop it."}
    )
    command: str | None = field(
        default=None, metadata={"description": "Shell command to run; needed for exec."}
    )
    timeout_seconds: int | None = field(
        default=None,
        metadata={
            "description": "Seconds until the command is killed; default 60.",
            "minimum": 1,
            "maximum": MOST_EXEC_SECONDS,
        },
    )


@dataclass(frozen=True, slots=True)
class PodmanShellResult:
    """What came of it. The last three are None for start and stop that went well."""

    action: Action
    container_name: str
    stdout: str | None
    stderr: str | None
    exit_code: int | None

    def render(self) -> str:
        """For a model."""
        parts = [f"container {self.container_name}"]
        if self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        for name in ("stdout", "stderr"):
            text: str | None = getattr(self, name)
            if text:
                parts.append(f"{name}:\n{text}")
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class _Settings:
    """What every container of a section is made from."""

    image: str
    name_prefix: str
    workdir: str | None
    environment: Mapping[str, str]
    timeout: timedelta | None
    output_bytes: int
    engine: Engine | str | None
    privileged: bool

    @property
    def text(self) -> str:
        """What a model is told about the container."""
        means = "as root, with every privilege" if self.privileged else "without privileges"
        return _TEXT.format(means=means)


class PodmanShellSection(Section):
    """A prompt section with a shell in a container.

    - ``image``: pulled if it is not there; needs a Python of 3.8 or newer.
    - ``name_prefix``: containers are named after it and the session.
    - ``workdir``: where commands start, inside; default ``/workspace``.
    - ``environment``: the variables that commands see besides the image's own.
    - ``timeout``: how long a container may run; then it is removed, whatever runs in it.
    - ``output_bytes``: how much of each stream is shown.
    - ``engine``: an engine or its address; default what `podbot.engine.connect` finds, and there
      ``PODMAN_URL`` counts.
    - ``privileged``: root, with all that the engine has to give. Where the engine is root's, a
      model's command can take over the machine then; it is never so unless asked for here.
    """

    exclusive = CONTAINER_SHELL

    def __init__(  # noqa: PLR0913 - what is chosen for a container, each by name
        self,
        *,
        image: str = DEFAULT_IMAGE,
        name_prefix: str = "wai-shell",
        workdir: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: timedelta | None = None,
        output_bytes: int = OUTPUT_BYTES,
        engine: Engine | str | None = None,
        privileged: bool = False,
        session: Session | None = None,
    ):
        settings = _Settings(
            image, name_prefix, workdir, _variables(environment), timeout, output_bytes, engine,
            privileged,
        )  # fmt: skip
        _check(settings)
        shells = _Shells(settings)
        super().__init__(
            key="podman.shell",
            title="Container Shell",
            template=settings.text,
            tools=[
                Tool[PodmanShellParams, PodmanShellResult](
                    name="podman_shell",
                    description="Run shell commands in an isolated container without network.",
                    handler=shells.handle,
                )
            ],
            session=session,
        )
        self._settings = settings
        # Nothing in here leads back to the section, or it would never be collected.
        self._finalizer = weakref.finalize(self, shells.end)

    def clone(self, *, session: Session, bus: EventBus) -> PodmanShellSection:
        """The same section for another session, with containers of its own."""
        given = self._settings
        made = PodmanShellSection(
            image=given.image, name_prefix=given.name_prefix, workdir=given.workdir,
            environment=given.environment, timeout=given.timeout,
            output_bytes=given.output_bytes, engine=given.engine,
            privileged=given.privileged, session=session,
        )  # fmt: skip
        made.bus = bus
        return made

    def close(self) -> None:
        """Stop every container."""
        self._finalizer()


class _Shells:
    """The shells of a section: one for each session that uses it."""

    def __init__(self, settings: _Settings):
        self._settings = settings
        self._lock = threading.Lock()
        self._shells: dict[str, _Shell] = {}
        self._ended = False
        self._logger = get_logger(
            __name__, component="prompt.podman", secrets=settings.environment.values()
        )

    def handle(
        self, params: PodmanShellParams, *, context: ToolContext
    ) -> ToolResult[PodmanShellResult]:
        """Serve one call. Whatever goes wrong is told in the result."""
        session_id = context.session.session_id
        name = f"{self._settings.name_prefix}-{session_id}"
        try:
            if params.action == "exec" and not (params.command or "").strip():
                raise ToolValidationError(
                    "exec needs a command", remedy='pass the shell command to run as "command"'
                )
            shell = self._of(session_id, name)
            match params.action:
                case "start":
                    shell.start()
                    return _done(params.action, shell.name, "runs")
                case "stop":
                    shell.stop()
                    return _done(params.action, shell.name, "is stopped")
                case "exec":
                    return shell.exec(params, context)
        except PodbotError as error:
            self._logger.warning(
                "podman_shell.failed", action=params.action, kind=error.kind.value, error=error
            )
            value = PodmanShellResult(params.action, name, None, str(error), None)
            return ToolResult(f"{params.action} failed: {error}", value, success=False)

    def _of(self, session_id: str, name: str) -> _Shell:
        with self._lock:
            if self._ended:
                raise _closed()
            shell = self._shells.get(session_id)
            if shell is None:
                shell = _Shell(name, session_id, self._settings, self._logger)
                self._shells[session_id] = shell
            return shell

    def end(self) -> None:
        """Stop them all, for good."""
        with self._lock:
            self._ended = True
            shells = list(self._shells.values())
        for shell in shells:
            shell.end()


class _Shell:
    """One container, while it is needed. One command at a time."""

    def __init__(self, name: str, session: str, settings: _Settings, logger: StructuredLogger):
        self.name = name
        self._session = session
        self._settings = settings
        self._logger = logger
        self._turn = threading.RLock()  # held by whoever starts, uses or stops the container
        self._sandbox: ContainerSandbox | None = None
        self._uptime: threading.Timer | None = None
        self._over = False

    def start(self) -> ContainerSandbox:
        """The container, started if it does not run."""
        from podbot.sandbox.container.sandbox import ContainerSandbox
        from podbot.sandbox.policy import Policy

        with self._turn:
            if self._over:  # the section was closed since this call began
                raise _closed()
            if self._sandbox is not None and not self._sandbox.closed:
                self._sandbox.start()
                return self._sandbox
            settings = self._settings
            sandbox = self._sandbox = ContainerSandbox(
                image=settings.image,
                engine=settings.engine,
                name=self.name,
                privileged=settings.privileged,
                session=self._session,
                policy=Policy(environment=settings.environment, pass_environment=()),
            )
            if self._over:  # closed meanwhile, by one who did not see it and waits for this turn
                raise _closed()
            if settings.timeout is not None:
                self._uptime = threading.Timer(
                    settings.timeout.total_seconds(), self._expire, (sandbox,)
                )
                self._uptime.daemon = True
                self._uptime.start()
            self._logger.info("podman_shell.started", container=self.name)
            return sandbox

    def stop(self) -> None:
        """End the container; one that is not there is no error."""
        with self._turn:
            sandbox, self._sandbox = self._sandbox, None
            uptime, self._uptime = self._uptime, None
            if uptime is not None:
                uptime.cancel()
            if sandbox is not None:
                sandbox.close()
                self._logger.info("podman_shell.stopped", container=self.name)

    def end(self) -> None:
        """End the container now, also from under a command."""
        self._over = True
        sandbox = self._sandbox
        if sandbox is not None:
            sandbox.close()
        self.stop()

    def exec(
        self, params: PodmanShellParams, context: ToolContext
    ) -> ToolResult[PodmanShellResult]:
        """Run a command."""
        with self._turn:
            sandbox = self.start()
            wanted = params.timeout_seconds or EXEC_SECONDS
            left = context.remaining()
            seconds = wanted if left is None else max(0.001, min(wanted, left))
            thread = threading.get_ident()
            with context.cancellation.stopping(lambda: sandbox.cancel(thread)):
                context.check()
                try:
                    done = sandbox.exec(
                        ["sh", "-c", params.command or ""],
                        timeout=seconds,
                        cwd=self._settings.workdir,
                    )
                except SandboxError as error:
                    if sandbox.closed:
                        raise (_closed() if self._over else self._time_is_up()) from error
                    raise
            context.check()
            return self._result(done, seconds)

    def _result(self, done: ExecResult, seconds: float) -> ToolResult[PodmanShellResult]:
        stderr = _cut(done.stderr_bytes, self._settings.output_bytes)
        message = f"the command exited with {done.exit_code}"
        if done.timed_out:
            message = f"the command was killed after {seconds:g} s"
        if not done.ok:
            stderr = f"{stderr.rstrip()}\n{message}".lstrip()
        stdout = _cut(done.stdout_bytes, self._settings.output_bytes)
        value = PodmanShellResult("exec", self.name, stdout, stderr, done.exit_code)
        return ToolResult(f"{message[0].upper()}{message[1:]}.", value, success=done.ok)

    def _expire(self, sandbox: ContainerSandbox) -> None:
        """Its time is up: remove it, also from under a command. Runs in a thread of its own."""
        self._logger.warning("podman_shell.expired", container=self.name)
        sandbox.close()

    def _time_is_up(self) -> SandboxError:
        limit = self._settings.timeout
        return SandboxError(
            f"the container was removed, as it may run for {limit} at most",
            kind=Kind.TIMEOUT,
            remedy="call exec again: it starts a new container; files of the old one are gone",
        )


def _closed() -> SandboxError:
    return SandboxError("this section is closed", kind=Kind.CLOSED, remedy="make a new section")


def _done(action: Action, name: str, state: str) -> ToolResult[PodmanShellResult]:
    value = PodmanShellResult(action, name, None, None, None)
    return ToolResult(f"The container {name} {state}.", value)


def _cut(data: bytes, limit: int) -> str:
    """A stream as text of ``limit`` bytes at most, the mark of what was cut included."""
    text = data[: limit + 1].decode("utf-8", "replace")
    if len(data) <= limit and len(text.encode()) <= limit:
        return text
    return text.encode()[: limit - len(TRUNCATED)].decode("utf-8", "ignore") + TRUNCATED


def _variables(environment: Mapping[str, str] | None) -> dict[str, str]:
    """The variables of a section, named if they are none; a value may be a secret, and is not."""
    expect({} if environment is None else environment, Mapping, "environment", PromptError)
    for name, value in (environment or {}).items():
        given: tuple[object, object] = name, value  # callers need not be typed
        if not all(isinstance(each, str) and "\0" not in each for each in given):
            problem = "is not text"
        elif not name or "=" in name:
            problem = "has a name that no variable can have"
        else:
            continue
        raise PromptError(
            f"environment {problem}: {name!r:.80}",
            remedy="give strings without NUL; names are not empty and hold no '='",
        )
    return dict(environment or {})


def _check(settings: _Settings) -> None:
    image: object = settings.image
    if not isinstance(image, str) or not image.strip():
        raise PromptError(
            f"image={image!r:.80} names no image",
            kind=Kind.MISSING_REQUIRED,
            remedy=f"name one with Python in it, or leave it out for {DEFAULT_IMAGE}",
        )
    if not isinstance(settings.privileged, bool):  # the text "false" would count as yes
        raise PromptError(
            f"privileged={settings.privileged!r:.80} is neither True nor False",
            remedy="pass a bool; leave it out for no privileges",
        )
    if _PREFIX.fullmatch(settings.name_prefix) is None:
        raise PromptError(
            f"name_prefix={settings.name_prefix!r} cannot begin the name of a container",
            remedy="use up to 63 letters, digits, '_', '.' and '-', a letter or a digit first",
        )
    if settings.workdir is not None and not settings.workdir.startswith("/"):
        raise PromptError(
            f"workdir={settings.workdir!r} is not an absolute path", remedy="start it with /"
        )
    if settings.timeout is not None and settings.timeout <= timedelta(0):
        raise PromptError(
            f"timeout={settings.timeout} leaves no time", remedy="give more than zero, or None"
        )
    if settings.output_bytes < len(TRUNCATED):
        raise PromptError(
            f"output_bytes={settings.output_bytes} shows nothing",
            remedy=f"give {len(TRUNCATED)} at least",
        )
