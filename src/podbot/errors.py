"""Every error the library raises, each with a kind and a remedy.

A command that fails inside a sandbox is never one of these: its exit status is data in the
result. An error from here always means that podbot itself could not do what was asked. Nothing
in this module imports the rest of the library.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What went wrong, as a stable word that programs may compare with."""

    # Asking for something that is not valid.
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"
    UNKNOWN_BACKEND = "unknown_backend"

    # What may leave a sandbox.
    BAD_RULE = "bad_rule"
    BAD_LISTENER = "bad_listener"
    NO_CREDENTIAL = "no_credential"

    # Starting a sandbox.
    TARGET_MISSING = "target_missing"
    TARGET_NOT_DIRECTORY = "target_not_directory"
    TARGET_REFUSED = "target_refused"
    TARGET_TOO_LARGE = "target_too_large"
    USERNS_DENIED = "userns_denied"
    KERNEL_TOO_OLD = "kernel_too_old"
    OVERLAY_REFUSED = "overlay_refused"
    PROC_REFUSED = "proc_refused"
    LOCKDOWN_FAILED = "lockdown_failed"
    LAYER_FAILED = "layer_failed"
    LAUNCH_FAILED = "launch_failed"
    DISK_FULL = "disk_full"
    OUT_OF_DESCRIPTORS = "out_of_descriptors"
    OUT_OF_PROCESSES = "out_of_processes"

    # A sandbox that runs.
    CLOSED = "closed"
    FOREIGN_PROCESS = "foreign_process"
    GUEST_LOST = "guest_lost"
    GUEST_UNRESPONSIVE = "guest_unresponsive"
    PROTOCOL = "protocol"
    DISK_LIMIT = "disk_limit"
    LIMIT = "limit"

    # Commands and processes.
    COMMAND_NOT_FOUND = "command_not_found"
    COMMAND_NOT_EXECUTABLE = "command_not_executable"
    BAD_CWD = "bad_cwd"
    NO_SUCH_PROCESS = "no_such_process"
    TIMEOUT = "timeout"
    KERNEL_FAILED = "kernel_failed"

    # Files.
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    IS_DIRECTORY = "is_directory"
    NOT_DIRECTORY = "not_directory"
    NOT_A_FILE = "not_a_file"
    NOT_EMPTY = "not_empty"
    PERMISSION = "permission"
    PATH_ESCAPE = "path_escape"
    BAD_PATH = "bad_path"
    TOO_LARGE = "too_large"
    NO_MATCH = "no_match"
    NOT_UNIQUE = "not_unique"
    BAD_PATTERN = "bad_pattern"
    IO = "io"

    # Changes: review, apply, undo.
    UNKNOWN_ID = "unknown_id"
    AMBIGUOUS_ID = "ambiguous_id"
    IN_USE = "in_use"
    CONFLICT = "conflict"
    FLAGGED = "flagged"
    NOTHING_SELECTED = "nothing_selected"
    APPLY_FAILED = "apply_failed"
    UNDO_REFUSED = "undo_refused"
    NOTHING_TO_UNDO = "nothing_to_undo"
    BAD_ARCHIVE = "bad_archive"
    STATE_FAILED = "state_failed"

    # Sessions, prompts and tools.
    SNAPSHOT_FAILED = "snapshot_failed"
    BAD_SNAPSHOT = "bad_snapshot"
    BAD_ARGUMENTS = "bad_arguments"
    BAD_PROMPT = "bad_prompt"
    BAD_OVERRIDE = "bad_override"
    CANCELLED = "cancelled"
    MISSING_DEPENDENCY = "missing_dependency"

    # Containers and their engine. `PERMISSION_DENIED` and `SOCKET_NOT_FOUND` are about the
    # engine's socket; an endpoint without a file has `CONNECTION_FAILED` only.
    NO_ENGINE = "no_engine"
    SOCKET_NOT_FOUND = "socket_not_found"
    PERMISSION_DENIED = "permission_denied"
    CONNECTION_FAILED = "connection_failed"
    HEALTH_CHECK_FAILED = "health_check_failed"
    PLAIN_TCP_REFUSED = "plain_tcp_refused"
    ENGINE_FAILED = "engine_failed"
    ENGINE_PROTOCOL = "engine_protocol"
    IMAGE_NOT_FOUND = "image_not_found"
    PULL_FAILED = "pull_failed"
    BUILD_FAILED = "build_failed"
    CONTAINER_NOT_FOUND = "container_not_found"
    CONTAINER_NOT_RUNNING = "container_not_running"
    NAME_IN_USE = "name_in_use"
    CREATE_FAILED = "create_failed"
    START_FAILED = "start_failed"
    PROFILE_MISMATCH = "profile_mismatch"
    UPLOAD_FAILED = "upload_failed"
    DOWNLOAD_FAILED = "download_failed"
    EXEC_FAILED = "exec_failed"

    # Settings.
    MISSING_REQUIRED = "missing_required"


class PodbotError(Exception):
    """The root of everything podbot raises on purpose.

    ``kind`` is stable and meant for programs, the message is for people, and ``remedy`` (when
    there is one) says what to do next. A class that is about one thing names its usual kind.
    """

    usual_kind = Kind.INVALID

    def __init__(self, message: str, *, kind: Kind | None = None, remedy: str | None = None):
        super().__init__(message)
        self.message = message
        self.kind = self.usual_kind if kind is None else kind
        self.remedy = remedy

    def __str__(self) -> str:
        if self.remedy is None:
            return self.message
        return f"{self.message}\n  remedy: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments do not pickle by themselves, and these travel
        # through multiprocessing and pytest-xdist: with all they hold, notes included.
        return (type(self), (self.message,), vars(self))


class SandboxError(PodbotError):
    """The sandbox failed: it could not start, was lost, or could not do what was asked."""


class LaunchError(SandboxError):
    """A sandbox could not be started. Nothing of it is left behind."""


class GuestLostError(SandboxError):
    """The program inside the sandbox died or stopped making sense; the sandbox is over."""


class FileError(SandboxError):
    """A file verb could not do its work: the path is missing, refused, of the wrong kind, …"""


class CommandFailedError(SandboxError):
    """Raised only by ``ExecResult.check()``, for callers who want a failed command to raise."""


class ChangesError(PodbotError):
    """Changes could not be read, applied, undone, saved or found. The host tree is as it was."""


class ConfigError(PodbotError):
    """A setting is missing or is not valid. ``field`` names it."""

    def __init__(
        self,
        message: str,
        *,
        kind: Kind = Kind.INVALID,
        remedy: str | None = None,
        field: str | None = None,
    ):
        super().__init__(message, kind=kind, remedy=remedy)
        self.field = field


class ContainerError(PodbotError):
    """The container engine, or a container or image of its, could not do what was asked.

    ``subject`` is what it was about: a container's id, an image's name, a socket's path.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Kind = Kind.ENGINE_FAILED,
        remedy: str | None = None,
        subject: str | None = None,
    ):
        super().__init__(message, kind=kind, remedy=remedy)
        self.subject = subject


class EgressError(PodbotError):
    """A rule or route for what may leave a sandbox, or a socket given to the proxy, is not valid.

    Or a source has no credential.
    """

    usual_kind = Kind.BAD_RULE


class SessionError(PodbotError):
    """A session was asked for something that is not valid. It is as it was."""


class SnapshotSerializationError(SessionError):
    """A session holds something that JSON cannot carry faithfully."""

    usual_kind = Kind.SNAPSHOT_FAILED


class SnapshotRestoreError(SessionError):
    """A snapshot is damaged, of another version, or names what the caller did not allow."""

    usual_kind = Kind.BAD_SNAPSHOT


class PromptError(PodbotError):
    """A prompt, section, tool or override is not well made."""

    usual_kind = Kind.BAD_PROMPT


class ToolValidationError(PodbotError):
    """What a model asked of a tool cannot be done as asked; the message tells it what to do."""

    usual_kind = Kind.BAD_ARGUMENTS


class MissingDependencyError(PodbotError):
    """An optional part of podbot is not installed."""

    usual_kind = Kind.MISSING_DEPENDENCY

    @classmethod
    def of(cls, package: str, *, extra: str) -> MissingDependencyError:
        """The error that names the missing package and the extra that brings it."""
        return cls(
            f"the package {package!r} is not installed",
            remedy=f"install podbot with it: pip install 'podbot[{extra}]', or from a clone: "
            f"pip install 'PATH_OF_THE_CLONE[{extra}]'",
        )
