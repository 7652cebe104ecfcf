"""A container without an engine: the same options, the same verbs, in a plain process.

For what sections decide about containers, on machines without Podman. The real thing is tried in
tests/e2e/test_podman_section.py.
"""

from __future__ import annotations

import os
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
        self.made.append(self)

    def start(self) -> None:
        """It runs from the beginning."""
