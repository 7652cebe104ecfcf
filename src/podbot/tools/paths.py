"""Paths as the tools know them: short, plain, and always below the workspace.

A model names files by these. What is not one is refused with words that say how to write it. No
path here is ever a path of the host; a sandbox decides what one leads to.
"""

from __future__ import annotations

from dataclasses import dataclass

from podbot.errors import Kind, ToolValidationError
from podbot.runtime.given import expect

WORKSPACE = "/workspace"
"""What tool arguments call the workspace, on every backend."""

MAX_SEGMENTS = 16
MAX_SEGMENT = 80
MAX_SHOWN = 120
MAX_LENGTH = 8192
"""Longer than any path that fits, the host's own name for the workspace included."""


@dataclass(frozen=True, slots=True)
class VfsPath:
    """A path below the workspace, as its names; the workspace itself has none."""

    segments: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a sandbox takes it: relative to the workspace."""
        return "/".join(self.segments) or "."

    def __podbot_json__(self) -> str:
        """As programs read it in a result, and as tools take it: ``src/app.py``."""
        return str(self)

    @property
    def is_root(self) -> bool:
        """Whether this is the workspace itself."""
        return not self.segments

    def below(self, other: VfsPath) -> bool:
        """Whether this lies in ``other``, or is it."""
        return self.segments[: len(other.segments)] == other.segments

    def joined(self, *names: str) -> VfsPath:
        """The path that many names further down."""
        return VfsPath((*self.segments, *names))


def normalize_string_path(
    raw: str | None, *, field: str = "path", allow_root: bool = True, workdir: str | None = None
) -> VfsPath:
    """The path a model wrote.

    Relative, or absolute below ``/workspace`` (or below ``workdir``, as commands see it); nothing,
    ``""``, ``"."`` and ``"/"`` are the workspace itself. Raises `ToolValidationError`.
    """
    if raw is not None:
        expect(raw, str, field, ToolValidationError)
    if raw is not None and len(raw) > MAX_LENGTH:
        raise ToolValidationError(
            f"{field} has {len(raw)} characters",
            kind=Kind.BAD_PATH,
            remedy=f"paths have {MAX_SEGMENTS} segments of {MAX_SEGMENT} characters at most",
        )
    text = _without_workspace(raw or "", field, workdir)
    segments = tuple(part for part in text.split("/") if part)
    if segments == (".",):
        segments = ()
    check_segments(segments, field)
    if not segments and not allow_root:
        raise ToolValidationError(
            f"{field} names the workspace itself",
            kind=Kind.BAD_PATH,
            remedy="name a file or folder in it, such as src/main.py",
        )
    return VfsPath(segments)


def _without_workspace(text: str, field: str, workdir: str | None) -> str:
    if not text.startswith("/") or not text.strip("/"):
        return text
    for prefix in (WORKSPACE, workdir):
        if prefix is not None and f"{text}/".startswith(f"{prefix}/"):
            return text[len(prefix) :]
    raise ToolValidationError(
        f"{field} {_shown(text)} is outside of the workspace",
        kind=Kind.PATH_ESCAPE,
        remedy=f"use a path relative to {WORKSPACE}, or one that starts with {WORKSPACE}/",
    )


def check_segments(segments: tuple[str, ...], field: str) -> None:
    """Refuse what no path of a tool may hold."""
    if len(segments) > MAX_SEGMENTS:
        raise ToolValidationError(
            f"{field} has {len(segments)} segments",
            kind=Kind.BAD_PATH,
            remedy=f"paths have {MAX_SEGMENTS} segments at most",
        )
    for segment in segments:
        if segment in (".", ".."):
            raise ToolValidationError(
                f"{field} holds the segment {segment!r}",
                kind=Kind.PATH_ESCAPE,
                remedy=f"write the path from {WORKSPACE} down, without . or ..",
            )
        if len(segment) > MAX_SEGMENT:
            raise ToolValidationError(
                f"{field} holds a segment of {len(segment)} characters: {_shown(segment)}",
                kind=Kind.BAD_PATH,
                remedy=f"names have {MAX_SEGMENT} characters at most",
            )
        if not segment.isascii() or not segment.isprintable():
            raise ToolValidationError(
                f"{field} holds {_shown(segment)}, which is not plain ASCII",
                kind=Kind.BAD_PATH,
                remedy="use printable ASCII characters in names",
            )


def _shown(text: str) -> str:
    """The beginning of what a model wrote, escaped: never megabytes, nor lines of escapes."""
    shown = text[:MAX_SEGMENT]
    while len(ascii(shown)) > MAX_SHOWN:
        shown = shown[: len(shown) // 2]
    return ascii(shown) + ("..." if shown != text else "")
