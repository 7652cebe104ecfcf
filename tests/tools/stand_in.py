"""A container without an engine: the same options, the same verbs, in a plain process.

For what sections decide about containers, on machines without Podman. The real thing is tried in
tests/e2e/test_podman_section.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from podbot.sandbox import LocalSandbox
from podbot.sandbox.container.sandbox import CurrentContainer


class PlainContainer(LocalSandbox):
    """Takes a `ContainerSandbox`'s place. ``made`` are all there were, in order."""

    made: ClassVar[list[PlainContainer]] = []

    def __init__(self, target: str | os.PathLike[str] | None = None, **options: object):
        self.options = options
        super().__init__(target, policy=options["policy"])  # type: ignore[arg-type]
        name, image = str(options["name"]), str(options["image"])
        self.container: CurrentContainer | None = CurrentContainer(os.urandom(4).hex(), name, image)
        self.on_stop: Callable[[], object] | None = None
        self.made.append(self)

    def start(self) -> None:
        """It runs from the beginning."""


CRASHES = """
import os, signal, sys
from pathlib import Path
from podbot.tools import cached
folder = Path(sys.argv[1])
cached.claim(folder, keep=sys.argv[2] == "keep")
(folder / "workspace").mkdir()
for name in sys.argv[3:]:
    (folder / "workspace" / name).write_text("written")
os.kill(os.getpid(), signal.SIGKILL)
"""


def crashed(folder: Path, *words: str) -> Path:
    """A folder whose owner was killed."""
    command = [sys.executable, "-c", CRASHES, str(folder), *words]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    return folder
