"""A sign of life on stderr while long work goes on; never for pipes, never for quick work.

What the library tells of how far it is (see `podbot.changes.progress`) is shown here. For whom we
wait, and what was healed, is told everywhere: who looks at a pipe would not know.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from podbot.changes.progress import Step, listening
from podbot.cli import wording

if TYPE_CHECKING:
    import threading

PATIENCE = 1.0
"""Seconds of silence that need no explanation."""

_EVERY = 0.25


class Progress:
    """Shows what is being done, and how far it is, once it takes longer than a moment."""

    def __init__(self, doing: str, total: int | None = None):
        self.done = 0
        self._doing = doing
        self._total = total
        self._counts = total is None  # else whoever works counts by himself
        self._thread: threading.Thread | None = None
        self._heard = ExitStack()

    def __enter__(self) -> Self:
        self._heard.enter_context(listening(self._hear))
        if wording.is_terminal(sys.stderr):
            import threading

            self._over = threading.Event()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._heard.close()
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _hear(self, step: Step) -> None:
        if step.waiting or step.healed:
            from podbot.cli.remedies import with_names  # much to load, and seldom
            from podbot.cli.talk import warn

            if self._thread is not None:
                sys.stderr.write("\r\x1b[K")
            warn(f"podbot: {wording.message(with_names(step.doing))}")
        elif self._counts:
            self._doing, self.done, self._total = step.doing, step.done, step.total

    def _watch(self) -> None:
        waited = PATIENCE
        if self._over.wait(PATIENCE):
            return
        while True:
            sys.stderr.write(f"\r\x1b[K{self._text(waited)}")
            sys.stderr.flush()
            if self._over.wait(_EVERY):
                break
            waited += _EVERY
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    def _text(self, waited: float) -> str:
        if self.done and self._total:
            return f"{self._doing}: {self.done:,} of {self._total:,} …"
        if self.done:
            return f"{self._doing}: {self.done:,} …"
        return f"{self._doing} … {int(waited)} s"
