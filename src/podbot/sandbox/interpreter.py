"""How podbot starts a Python of its own: the guest, and the overlay's zygote.

Isolated and without ``site``: nothing of the user's environment, current folder or ``.pth`` files
gets into a process that builds sandboxes, and it starts in half the time. The packages around the
module are stand-ins without their ``__init__``, so that nothing else is imported.
"""

from __future__ import annotations

import os
import sys

# Not from typing: this module is loaded before all others.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

_START = """
import sys
for name, path in {packages!r}:
    package = sys.modules[name] = type(sys)(name)
    package.__path__ = path
from {package} import {module}
{module}.main()
"""


def start(module: str, folders: Sequence[str | None]) -> str:
    """The code that runs ``main()`` of a module.

    ``folders`` says of each package above it where its modules lie; None is nowhere.
    """
    *parents, name = module.split(".")
    packages = [
        (".".join(parents[:depth]), [folder] if folder else [])
        for depth, folder in enumerate(folders, 1)
    ]
    return _START.format(packages=packages, package=".".join(parents), module=name)


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``main()`` of a module below ``podbot``."""
    parents = module.split(".")[1:-1]
    folders = [os.path.join(_PACKAGE, *parents[:depth]) for depth in range(len(parents) + 1)]
    # Coverage starts itself through `site`; when it measures, let it.
    flags = ["-I"] if measured() else ["-I", "-S"]
    return [sys.executable, *flags, "-c", start(module, folders), *arguments]


def environment() -> dict[str, str]:
    """What such a process sees of the environment: nothing, unless coverage measures it."""
    return {key: value for key, value in os.environ.items() if key.startswith("COVERAGE_")}


def measured() -> bool:
    """Whether a coverage run wants its subprocesses measured."""
    return any(key.startswith("COVERAGE_PROCESS") for key in os.environ)


_ripgrep: list[str | None] = []


def ripgrep() -> str | None:
    """The rg that came with podbot, else the one on PATH, else none (Python searches then)."""
    if not _ripgrep:  # not functools.cache: this module is loaded before all others
        _ripgrep.append(_find_ripgrep())
    return _ripgrep[0]


def _find_ripgrep() -> str | None:
    beside = os.path.join(os.path.dirname(sys.executable), "rg")
    if os.access(beside, os.X_OK):
        return beside
    import sysconfig
    from shutil import which

    script = os.path.join(sysconfig.get_path("scripts"), "rg")
    return script if os.access(script, os.X_OK) else which("rg")
