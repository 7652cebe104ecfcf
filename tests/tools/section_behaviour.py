"""What every section with a workspace does, whatever its backend: one class of tests for all.

A backend's test class inherits from `FileToolBehaviour` or `CommandToolBehaviour` and says how its
section is made. The same tests then run on memory, local processes, overlays and containers.
"""

from __future__ import annotations

from command_behaviour import CommandTests
from file_behaviour import FileTests
from session_behaviour import SessionTests


class FileToolBehaviour(FileTests, SessionTests):
    """The seven file tools."""


class CommandToolBehaviour(CommandTests, FileToolBehaviour):
    """All nine tools."""
