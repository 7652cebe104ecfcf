"""What the host and its zygote both know, so that neither must load the other's code for it."""

from __future__ import annotations

PRIVATE = {"/run": "755", "/tmp": "1777", "/var/tmp": "1777"}  # noqa: S108 - what we cover
"""Folders that every sandbox has for itself, and their modes."""

UNREACHABLE = ("/proc", "/sys", "/dev", "/run")
"""Folders that hold nothing of the host's inside."""

LANDLOCK_MIN_ABI = 2
"""The first Landlock that allows renaming across folders at all."""
