"""Regular expressions that are compiled when they are first used.

Compiling those for what a run might hold takes longer than to look at what a small run holds.
"""

from __future__ import annotations

import re

# Type checkers take this name for true; they see the plain thing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import compile as expression
else:

    class expression:
        """What `re.compile` gives, made as soon as something is asked of it."""

        def __init__(self, pattern: str, flags: int = 0):
            self._given = pattern, flags

        def __getattr__(self, name: str) -> object:
            found = getattr(re.compile(*self._given), name)
            setattr(self, name, found)  # at hand from now on
            return found


__all__ = ["expression"]
