"""Folders that people name: found, without links, or refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path

from podbot.errors import Kind, LaunchError

Target = str | os.PathLike[str]
"""A folder as its name is given."""


def current_folder() -> str:
    """Where we stand, or the error that says that there is nothing any more."""
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"the current folder cannot be worked on: {error.strerror}; it may have been removed",
            kind=Kind.TARGET_MISSING,
            remedy="go to a folder that is there, or name one as the target",
        ) from None


def existing_folder(target: Target) -> Path:
    """A target as an absolute path without links, or the error that names what is wrong."""
    path = os.path.expanduser(os.fspath(target))
    shown = os.fsencode(path).decode("utf-8", "backslashreplace")
    try:
        real = os.path.realpath(path, strict=True)
        is_folder = os.path.isdir(real)
    except (FileNotFoundError, NotADirectoryError):
        raise LaunchError(
            f"target {shown} does not exist",
            kind=Kind.TARGET_MISSING,
            remedy="create the folder, or name another one",
        ) from None
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"target {shown} cannot be reached: {error}", kind=Kind.TARGET_REFUSED
        ) from None
    if not is_folder:
        raise LaunchError(
            f"target {shown} is not a folder",
            kind=Kind.TARGET_NOT_DIRECTORY,
            remedy="name the folder that holds the file",
        )
    return Path(real)
