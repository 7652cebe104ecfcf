"""What a client is told about each tool besides its schema: does it change things, and what?

The hints are about the workspace as the tools see it: what an overlay keeps apart for review still
counts as changed. A tool that is not known here gets no hints, which MCP reads as the worst case.
Clients show these to people; nothing is enforced by them.
"""

from __future__ import annotations

from collections.abc import Mapping

from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    """What MCP calls the annotations of a tool.

    - ``reads``: it changes nothing.
    - ``destroys``: it may change or remove what was there, not only add to it.
    - ``repeats``: the same call once more changes nothing further.
    - ``reaches_out``: it may reach beyond the workspace, a network above all.
    """

    title: str
    reads: bool
    destroys: bool
    repeats: bool
    reaches_out: bool


def hints_of_suite(*, reaches_out: bool) -> Mapping[str, Hints]:
    """The hints of podbot's own tools; ``reaches_out`` says whether commands can get anywhere."""

    def reading(title: str) -> Hints:
        return Hints(title, reads=True, destroys=False, repeats=True, reaches_out=False)

    def running(title: str) -> Hints:
        return Hints(title, reads=False, destroys=True, repeats=False, reaches_out=reaches_out)

    return {
        "ls": reading("List a folder"),
        "read_file": reading("Read a file"),
        "glob": reading("Find files by name"),
        "grep": reading("Search in files"),
        # It refuses to write where there is something already.
        "write_file": Hints(
            "Create a file", reads=False, destroys=False, repeats=True, reaches_out=False
        ),
        # Once more may find the text again, in what the first edit put there.
        "edit_file": Hints(
            "Edit a file", reads=False, destroys=True, repeats=False, reaches_out=False
        ),
        "rm": Hints(
            "Remove a file or folder", reads=False, destroys=True, repeats=True, reaches_out=False
        ),
        "shell_execute": running("Run a command"),
        "evaluate_python": running("Run Python code"),
    }
