"""Waiting until a disk has what was done: one call for a whole file system, or one for each thing.

A file system keeps what is written in memory for seconds. What must outlive a power failure is
waited for here, before whatever relies on it is done.
"""

from __future__ import annotations

import os

from podbot import kernel

FEW = 32
"""Up to so many things one waits for each by itself, which spares one what others are writing."""

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def folder(place: str | os.PathLike[str]) -> None:
    """Wait for the names in a folder, and its own attributes."""
    fd = os.open(place, _LIST)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def file_system(place: str) -> None:
    """Wait for everything on the file system that a folder is on."""
    try:
        fd = os.open(place, _LIST)
    except PermissionError:
        os.sync()  # a folder that may not be listed: all file systems then
        return
    try:
        kernel.sync_file_system(fd)
    finally:
        os.close(fd)
