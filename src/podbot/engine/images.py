"""Images: is it here, pull it, import it, build it, name it, remove it.

A registry may be out of reach, and often is: an image that is not here and cannot be pulled is an
error that says how to make one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

DEFAULT_IMAGE = "localhost/podbot-sandbox:latest"
"""What containers are made of unless another image is named; `podbot image build` makes it."""


class Images:
    """The images of one engine."""

    def __init__(self, engine: Engine):
        self._engine = engine
