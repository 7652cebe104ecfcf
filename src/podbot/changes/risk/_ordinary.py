"""Telling at a glance which files run nothing: those that are ordinary in every way.

Most changes are files with a plain name in a plain folder. Each folder is judged once, and then a
look at the name and the state will do. Says yes only where every rule of `risk` would have nothing
to say; whatever is out of the ordinary in any way is left to those rules.
"""

from __future__ import annotations

import re
import sys

from podbot.changes.late import expression
from podbot.changes.model import ADDED, FILE, MODIFIED, Change
from podbot.changes.risk._contents import is_among_settings_of_home, may_be_settings
from podbot.changes.risk._git import TELLING, Repositories
from podbot.changes.risk._host import Host
from podbot.changes.risk.paths import is_known_name, is_quiet, parts_of

INSTALLED = frozenset({"node_modules", "site-packages", "dist-packages"})
"""Folders of packages that nobody reviews."""

TOOLS = frozenset(
    ("pip", "pytest", "_pytest", "setuptools", "_distutils_hack", "pkg_resources", "wheel",
     "virtualenv", "pipx", "poetry", "hatch", "hatchling", "pdm", "uv", "tox", "nox", "twine",
     "mypy", "ruff", "black", "isort", "flake8", "pylint", "pyflakes", "pycodestyle", "coverage",
     "IPython", "ipykernel", "jupyter", "notebook", "debugpy", "pylsp", "jedi", "pre_commit")
)  # fmt: skip
"""Modules that people and editors start with ``python -m``, which looks in this folder first."""

_STEMS = sys.stdlib_module_names | TOOLS | {"__init__"}
# With an ending, so it is no script by its first line alone; and no disk spells it otherwise.
_PLAIN = expression(r"[\w+@-][\w.+@-]*\.[\w.+@-]*\w", re.ASCII)
_POWERS = 0o6111


_ABOUT = expression(
    r"(?:licen[cs]es?|copying|copyright|notice|readme|changelog|changes|history|authors"
    r"|contributors)(?:[-_][\w-]+)?(?:\.(?:md|txt|rst|mit|bsd|apache\d?))?",
    re.ASCII,
)


def is_about(name: str) -> bool:
    """Whether a file, by its plain name, is what packages carry to be read, such as a licence."""
    return _ABOUT.fullmatch(name) is not None


class Ordinary:
    """Which files of a change set are ordinary, on this host and among these changes."""

    def __init__(self, host: Host, repositories: Repositories):
        self._host, self._repositories = host, repositories
        self._quiet: dict[str, bool] = {}

    def is_ordinary(self, change: Change) -> bool:
        """Whether a change is an ordinary file that is new or has other contents."""
        new = change.new
        if (
            new is None
            or new.type is not FILE
            or new.mode & _POWERS
            or new.xattrs
            or (change.kind is not ADDED and change.kind is not MODIFIED)
        ):
            return False
        if may_be_settings(change.path) or is_among_settings_of_home(change):
            return False
        where = change.where
        folder, _, name = where.rpartition("/")
        quiet = self._quiet.get(folder)
        if quiet is None:
            quiet = self._quiet[folder] = self._is_quiet(folder)
        return quiet and _is_dull(name) and not self._host.knows(where)

    def _is_quiet(self, folder: str) -> bool:
        """Whether to lie in a folder means nothing."""
        names = parts_of(f"{folder}/name")[:-1]
        return (
            ".git" not in names
            and INSTALLED.isdisjoint(names)
            and is_quiet(names)
            and not self._repositories.hold(folder)
            and not self._host.uses(folder)
        )


def _is_dull(name: str) -> bool:
    """Whether a name in a quiet folder means nothing either."""
    if _PLAIN.fullmatch(name) is None or name.partition(".")[0] in _STEMS:
        return False
    lower = name.lower()
    return lower not in TELLING and not is_known_name(lower)
