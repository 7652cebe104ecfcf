"""`podbot doctor`: show what this host can enforce, and how to get what is missing.

It only prints what `podbot.sandbox.probe` found out; it changes nothing on the host.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import sys
from importlib import resources
from typing import TextIO

from podbot.cli import wording
from podbot.sandbox.probe import Finding, overlay_can_run, probe

ABOUT = """\
Try out what this host can enforce: namespaces, overlay file systems, Landlock, seccomp, control
groups, container engines. Each line says what was found, what is missing and how to get it.
Nothing on the host is changed."""

EXAMPLES = """\
examples:
  podbot doctor                      a line for each thing; remedies below what is missing
  podbot doctor --json | jq '.findings[] | select(.state != "found")'
  podbot doctor --apparmor | sudo tee /etc/apparmor.d/podbot   where AppArmor denies namespaces

exit codes: 0 the overlay backend can run here, 1 it cannot."""

_COLOURS = {"found": "32", "limited": "33", "missing": "31"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot doctor`."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the findings as JSON")
    output.add_argument(
        "--apparmor",
        action="store_true",
        help="print an AppArmor profile that lets this interpreter make user namespaces",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 when the overlay backend can run here, else 1."""
    if arguments.apparmor:
        print(apparmor_profile(sys.executable, sys.argv[0]), end="")
        return 0
    findings = probe()
    usable = overlay_can_run(findings)
    if arguments.json:
        report = {
            "overlay_can_run": usable,
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }
        print(json.dumps(report, indent=2))
    else:
        display = wording.display_of(sys.stdout)
        print(table(findings, colour=_wants_colour(sys.stdout), room=display.width))
    return 0 if usable else 1


def table(findings: tuple[Finding, ...], *, colour: bool = False, room: int | None = None) -> str:
    """The findings as aligned lines, each remedy below what it mends; ``room`` is their width."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        state = f"{finding.state:<7}"
        if colour:
            state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
        texts = [f"{finding.name:<{width}}  {state}  {finding.detail}"]
        if finding.fix is not None:
            texts.append(f"{'':<{width}}  {'fix':>7}  {finding.fix}")
        lines += [row for line in texts for row in wording.wrapped(line, room, width + 11)]
    lacking = [f.name for f in findings if f.required and f.state == "missing"]
    lines.append("")
    if lacking:
        lines.append(f"The overlay backend cannot run here; it lacks: {', '.join(lacking)}.")
    else:
        lines.append("The overlay backend can run here.")
    return "\n".join(lines)


def apparmor_profile(interpreter: str, program: str) -> str:
    """The shipped profile, attached to `interpreter`, with the lines that load it.

    The lines are comments of the profile, so the whole output is a valid one.
    AppArmor looks at the file that is executed, never at the links leading to it.
    """
    template = resources.files("podbot").joinpath("data/apparmor/podbot").read_text("utf-8")
    # Inside AppArmor's quotes these would still be patterns, variables or escapes.
    path = re.sub(r'([\\"*?\[\]{}^@])', r"\\\1", os.path.realpath(interpreter))
    podbot = os.path.abspath(program) if os.path.basename(program) == "podbot" else "podbot"
    return (
        template.replace("@INTERPRETER@", path)
        + "\n# Install it and load it:\n"
        + f"#   {shlex.quote(podbot)} doctor --apparmor | sudo tee /etc/apparmor.d/podbot\n"
        + "#   sudo apparmor_parser -r /etc/apparmor.d/podbot\n"
    )


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR")
