"""The file beside a layer in which the connections of its runs are noted: one line each, as JSON.

It goes with the layer. It is bounded: what a sandbox tries can be without end.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podbot.egress import Record
    from podbot.sandbox.layers import Layer

NAME = "connections"
MAX_BYTES = 4 << 20
"""What the file may hold; what comes after that is only counted."""

Line = Mapping[str, object]
"""A connection as its record tells it (`podbot.egress.Record.as_data`)."""


def place(layer: Layer) -> Path:
    """Where the connections of a layer's runs are noted."""
    return layer.path / NAME


class Log:
    """The file, while it is written. Made with the first connection; a full disk ends nothing."""

    def __init__(self, path: Path):
        self._path = path
        self._lock = threading.Lock()
        self._fd = -1
        self._left_out = 0
        self._over = False

    def add(self, record: Record) -> None:
        """Note a connection."""
        data = json.dumps(record.as_data()).encode("ascii") + b"\n"
        with self._lock:
            try:
                if self._over:
                    return
                if self._fd < 0:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                    self._fd = os.open(self._path, flags, 0o600)
                size = os.fstat(self._fd).st_size
                if size + len(data) > MAX_BYTES:
                    self._left_out += 1
                elif os.write(self._fd, data) < len(data):  # the disk is full by now
                    self._left_out += 1
                    os.ftruncate(self._fd, size)  # or the next line would go on in this one
            except OSError:
                self._left_out += 1

    def close(self) -> None:
        """Nothing comes any more. Say how much was left out."""
        with self._lock:
            self._over = True
            if self._fd < 0:
                return
            try:
                if self._left_out:
                    os.write(self._fd, json.dumps({"left_out": self._left_out}).encode() + b"\n")
            except OSError:
                pass  # the disk is full: nobody can be told
            finally:
                os.close(self._fd)
                self._fd = -1


def read(layer: Layer) -> tuple[tuple[Line, ...], int]:
    """What was noted, the oldest first, and how many connections were left out."""
    try:
        with open(place(layer), "rb") as file:
            data = file.read(2 * MAX_BYTES)
    except OSError:
        return (), 0
    found: list[Line] = []
    left_out = 0
    for line in data.splitlines():
        try:
            each = json.loads(line)
        except ValueError:
            continue  # podbot was killed while it wrote this
        if not isinstance(each, dict):
            continue
        more = each.get("left_out")
        if isinstance(more, int):
            left_out += more
        else:
            found.append(each)
    return tuple(found), left_out
