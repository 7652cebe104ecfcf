"""Whether this host cleans the layer folder by age, which would eat kept changes file by file.

systemd-tmpfiles removes what lies unused below /var/tmp for some weeks, and for an ordinary user no
other place is outside of every home. Nothing here changes that: it only reads the host's rules, so
that podbot can warn in time and say which line stops it.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path

# Later folders win over files of the same name in earlier ones.
RULES = ("/usr/lib/tmpfiles.d", "/run/tmpfiles.d", "/etc/tmpfiles.d")
_CLEANING = frozenset("dDevqQ")
_SPARING = frozenset("xX")


def age(folder: Path, rules: tuple[str, ...] = RULES) -> str | None:
    """After which time the host removes what lies unused in a folder; None if it does not."""
    files: dict[str, Path] = {}
    for place in rules:
        try:
            files.update({name: Path(place, name) for name in sorted(os.listdir(place))})
        except OSError:
            continue
    found = None
    for name, file in files.items():
        if not name.endswith(".conf"):
            continue
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) < 2 or line.startswith("#"):
                continue
            kind, path = words[0][:1], words[1].strip("\"'").rstrip("/")
            if kind in _SPARING and any(fnmatch(str(p), path) for p in (folder, *folder.parents)):
                return None
            lies_in = any(str(parent) == path for parent in (folder, *folder.parents))
            if kind in _CLEANING and lies_in and len(words) > 5 and words[5] != "-":
                found = words[5].lstrip("~")
    return found


def remedy(folder: Path) -> str:
    """The line that makes the host spare a folder."""
    return f"echo 'x {folder}' | sudo tee /etc/tmpfiles.d/podbot.conf"
