"""`podbot image`: build the images that sandboxes are made of, and list them.

stdout has the outcome, stderr what is being done.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from podbot.cli import wording
from podbot.cli.ps import ENGINE
from podbot.cli.wording import Column

if TYPE_CHECKING:
    from podbot.engine.image.building import BuiltImage

ABOUT = """\
Build the image that containers are made of, without any registry, or list those there are.

The large image is for agents: git, Node, Python, the agents named, and an inner Podman for
nested containers. The small one (--small) has a shell, Python and git, all that tools of a
sandbox need. Either becomes the default image of the container backend."""

EXAMPLES = """\
examples:
  podbot image build --small                  about a minute, from Debian packages
  podbot image build --small --from scratch   seconds, from this machine's own files, offline
  podbot image build                          the large one, with claude and codex
  podbot image build --with codex,goose       ... with these agents
  podbot image build --with none --tag my/sandbox:1
  podbot image build --from debian:trixie-slim
  podbot image list --json

docs/images.md says what is in the images, and how to add to them."""

BUILD = """\
Build an image and name it. The base is bootstrapped from Debian packages by mmdebstrap
(--from debian, the default; no registry is asked, and it is kept for the next time), made of
this machine's own Python, git and commands (--from scratch, small only), or an image that the
engine has or can pull. Progress is on stderr; Ctrl-C leaves nothing half-made."""

BUILD_EXAMPLES = """\
examples:
  podbot image build --small                  about a minute, from Debian packages
  podbot image build --small --from scratch   seconds, from this machine's own files, offline
  podbot image build --with codex,goose       the large one, with these agents
  podbot image build --fresh                  again, with the packages of today
  podbot image build --mirror http://ftp.debian.org/debian --tag my/sandbox:1
  podbot image build --from debian:trixie-slim --network host

exit codes: 0 built, 2 it could not be built (the reason and a remedy are on stderr),
130 interrupted."""

LIST = """\
List the images that podbot built, the newest first. One is `old` if this version of podbot
would build it otherwise."""

NO_AGENTS = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their options."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    build = verbs.add_parser(
        "build",
        help="build an image",
        description=BUILD,
        epilog=BUILD_EXAMPLES,
    )
    _add_build_options(build)
    listing = verbs.add_parser("list", help="what was built", description=LIST)
    for each in (build, listing):
        each.add_argument("--json", action="store_true", help="print the outcome as JSON")
        each.add_argument("--engine", metavar="URL", help=ENGINE)


def _add_build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        default="debian",
        metavar="debian|scratch|IMAGE",
        help="what to build on (default: debian)",
    )
    parser.add_argument("--small", action="store_true", help="a shell, Python and git; no agents")
    parser.add_argument(
        "--with",
        dest="agents",
        metavar="AGENT,...",
        help="agents to put in (claude, codex, goose, opencode, all, none; default: claude,codex)",
    )
    parser.add_argument("--tag", metavar="NAME", help="call it so (default: the default image)")
    parser.add_argument("--mirror", metavar="URL", help="where Debian packages come from")
    parser.add_argument(
        "--network",
        metavar="MODE",
        help="what the build reaches, in the engine's words; `host` where its own does not work",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="use nothing that earlier builds left behind"
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says."""
    wording.never_fail(sys.stdout)
    wording.never_fail(sys.stderr)
    return build(arguments) if arguments.verb == "build" else list_images(arguments)


def build(arguments: argparse.Namespace) -> int:
    """`podbot image build`."""
    from podbot import api
    from podbot.engine.image import recipes
    from podbot.engine.image.images import DEFAULT_IMAGE

    variant: recipes.Variant = "tools" if arguments.small else "sandbox"
    request = api.ImageRequest(
        recipes.recipe(variant, agents(arguments.agents, arguments.small)),
        source=arguments.source,
        tag=arguments.tag or DEFAULT_IMAGE,
        mirror=arguments.mirror,
        network=arguments.network,
        fresh=arguments.fresh,
    )
    began = time.monotonic()
    made = api.build_image(request, say, arguments.engine)
    if arguments.json:
        from podbot.cli import as_data

        as_data.show(data(made))
    else:
        took = wording.duration(time.monotonic() - began)
        inside = f" with {', '.join(made.agents)}" if made.agents else ""
        print(f"built {request.tag}{inside}: {wording.size(made.size)}, in {took}")
    return 0


def agents(given: str | None, small: bool) -> tuple[str, ...]:
    """The names of the agents that were asked for."""
    from podbot.engine.image.recipes import AGENTS, USUAL_AGENTS

    if given is None:
        return () if small else USUAL_AGENTS
    names = [name.strip() for name in given.split(",") if name.strip()]
    if names == [NO_AGENTS]:
        return ()
    return tuple(AGENTS) if names == ["all"] else tuple(names)


def say(text: str) -> None:
    """What is being done, on stderr."""
    print(f"  {wording.text(text)}", file=sys.stderr, flush=True)


def list_images(arguments: argparse.Namespace) -> int:
    """`podbot image list`."""
    from podbot import api

    found = api.images(arguments.engine)
    if arguments.json:
        from podbot.cli import as_data

        as_data.show({"images": [data(image) for image in found]})
    elif found:
        print("\n".join(table(found)))
    else:
        print("podbot has built no image yet; `podbot image build` makes one")
    return 0


def data(image: BuiltImage) -> dict[str, object]:
    """An image under keys that stay."""
    return {
        "id": image.id,
        "names": list(image.names),
        "variant": image.variant,
        "agents": list(image.agents),
        "from": image.source,
        "size": image.size,
        "created": image.created,
        "current": image.current,
    }


def table(found: tuple[BuiltImage, ...]) -> list[str]:
    """The list for a person."""
    columns = (
        Column("NAME", gives_way=True, keeps_end=True),
        Column("VARIANT"),
        Column("AGE"),
        Column("SIZE"),
        Column("FROM"),
        Column("AGENTS", gives_way=True),
    )
    now = time.time()
    rows = [
        (
            wording.name(name),
            wording.name(each.variant) + ("" if each.current else ", old"),
            wording.duration(max(0.0, now - each.created)),
            wording.size(each.size),
            wording.name(each.source),
            wording.name(" ".join(each.agents)),
        )
        for each in found
        for name in each.names
    ]
    return wording.table(columns, rows, wording.display_of(sys.stdout))
