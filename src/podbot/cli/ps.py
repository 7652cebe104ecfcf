"""`podbot ps`: the containers podbot made, and whether whoever made them still lives."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from podbot.cli import wording
from podbot.cli.wording import Column

if TYPE_CHECKING:
    from podbot.launch.containers import ContainerInfo

ABOUT = """\
List the containers that podbot made, running or not, the newest first. Others that the
same engine runs are not shown. OWNER is the process that made it: `gone` means that
`podbot gc` would remove it, `elsewhere` that it cannot be told from here. SESSION is the
session whose tools use it, if one's do."""

EXAMPLES = """\
examples:
  podbot ps                       what is there?
  podbot ps --json                the same as data, for scripts
  podbot exec NAME -- ps aux      look inside one
  podbot stop NAME                end one

The engine is found as docs/engine.md says; PODBOT_ENGINE_SOCKET or --engine names one."""

ENGINE = "the engine to use, such as unix:///path/to.sock or ssh://user@host/path"

NAME = "a name, an id, or three or more characters that one of them begins with"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot ps`."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.add_argument("--engine", metavar="URL", help=ENGINE)


def run(arguments: argparse.Namespace) -> int:
    """Print the list."""
    from podbot import api

    found = api.ps(arguments.engine)
    if arguments.json:
        from podbot.cli import as_data

        as_data.show({"containers": [data(container) for container in found]})
    elif found:
        print("\n".join(table(found)))
    else:
        print("podbot has no containers")
    return 0


def data(container: ContainerInfo) -> dict[str, object]:
    """A container under keys that stay."""
    return {
        "id": container.id,
        "name": container.name,
        "image": container.image,
        "status": container.status,
        "running": container.running,
        "created": container.created,
        "kind": container.kind,
        "session": container.session,
        "owner": {"pid": container.owner, "state": container.owner_state},
    }


def table(found: tuple[ContainerInfo, ...]) -> list[str]:
    """The list for a person."""
    columns = (
        Column("NAME"),
        Column("ID"),
        Column("STATUS"),
        Column("AGE"),
        Column("KIND"),
        Column("OWNER"),
        Column("SESSION"),
        Column("IMAGE", gives_way=True, keeps_end=True),
    )
    now = time.time()
    rows = [
        (
            wording.name(each.name),
            wording.name(each.id[:12]),
            wording.name(each.status),
            wording.duration(max(0.0, now - each.created)),
            wording.name(each.kind or ""),
            _owner(each),
            wording.name(each.session or "-"),
            wording.name(each.image),
        )
        for each in found
    ]
    return wording.table(columns, rows, wording.display_of(sys.stdout))


def _owner(container: ContainerInfo) -> str:
    if container.owner_state == "alive":
        return f"pid {container.owner}"
    return "gone" if container.owner_state == "dead" else "elsewhere"
