"""The words that the prompts of all workspaces share, so that they cannot disagree.

Each section says in its own words what its workspace is; how to name files and what the tools allow
is said here, from the numbers the tools use.
"""

from __future__ import annotations

import textwrap

from podbot.tools import evaluation, files, filesystem, paths, shell

FILES = f"""\
`ls`, `read_file`, `write_file`, `edit_file`, `glob`, `grep` and `rm` work on the workspace. Their
paths are relative to it, or start with `{paths.WORKSPACE}/`: plain ASCII, up to
{paths.MAX_SEGMENTS} names of {paths.MAX_SEGMENT} characters, no `..`. `write_file` creates files
of up to {filesystem.KEPT_CHARACTERS:,} characters; change an existing file with `edit_file`.
`read_file` gives up to {files.READ_LINES:,} lines at once; read on with `offset`."""

SHELL_SECONDS = "SHELL-SECONDS"
"""Stands for the timeout of a command that names none, until a section knows it."""

RELATIVE = f"""\
Inside a command `{paths.WORKSPACE}` does not exist. Commands start in the workspace: use relative
paths there."""


def commands(eval_size: str, shell_strings: bool = True) -> str:
    """What the two tools that run things allow; ``eval_size`` is how much Python.

    ``shell_strings``: a command may be one string, for a shell.
    """
    string = " One string is run by `sh -c`." if shell_strings else ""
    return f"""\
`shell_execute` runs one command, given as a list of words; no shell reads it.{string} It may take
{shell.MOST_SECONDS:g} seconds ({SHELL_SECONDS} unless you say otherwise), and you see
{shell.STREAM_BYTES // 1024} KiB of each output stream. `evaluate_python` runs {eval_size} with a
fresh `python3`, for {evaluation.SECONDS:g} seconds at most; it can open files of the workspace
itself."""


def with_timeout(text: str, shell_seconds: float) -> str:
    """A text with the timeout that holds here."""
    return text.replace(SHELL_SECONDS, f"{shell_seconds:g}")


def joined(*paragraphs: str) -> str:
    """Paragraphs as one text, in lines of even length."""
    return "\n\n".join(textwrap.fill(" ".join(each.split()), 100) for each in paragraphs)
