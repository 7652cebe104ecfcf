"""What podbot's images are made of: the packages, the pinned agents, the build context.

One table of agents and the files in `podbot/data/image` say it all; `building.py` has it done.
Nothing here talks to an engine or to a network.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable
from importlib import resources
from typing import Literal

from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass

Variant = Literal["tools", "sandbox"]
"""``tools``: a shell, Python and git. ``sandbox``: also an inner Podman, Node and agents."""

CONTAINERFILE = "Containerfile"
LISTS: dict[Variant, tuple[str, ...]] = {
    "tools": ("tools.list",),
    "sandbox": ("tools.list", "sandbox.list"),
}
CONTEXT = (
    CONTAINERFILE, "agents", "askpass", "containers.conf", "install", "nesting", "sandbox.list",
    "tools.list",
)  # fmt: skip
"""The files of the project that the engine gets; `certificates` are the one other."""

MAX_CERTIFICATES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that can be in the image: ``package`` of npm, in just this version.

    ``{arch}`` in the name of a package stands for what Node calls the processor.
    """

    name: str
    package: str
    version: str

    @property
    def pinned(self) -> str:
        """As the build wants it: the command, and where it comes from."""
        return f"{self.name}={self.package}@{self.version}"


AGENTS = {
    agent.name: agent
    for agent in (
        Agent("claude", "@anthropic-ai/claude-code", "2.1.325"),
        Agent("codex", "@openai/codex", "0.166.0"),
        Agent("goose", "@aaif/goose-binary-linux-{arch}", "1.52.0"),
        Agent("opencode", "opencode-ai", "1.18.33"),
    )
}
"""Every agent podbot can put into an image, each tried in the version that stands here."""

USUAL_AGENTS = ("claude", "codex")


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image: its variant, and the agents in it."""

    variant: Variant = "sandbox"
    agents: tuple[Agent, ...] = ()

    def __post_init__(self) -> None:
        if self.variant not in LISTS:
            raise ConfigError(
                f"the variant {self.variant!r} of an image is not known",
                kind=Kind.INVALID,
                remedy=f"use one of: {', '.join(LISTS)}",
                field="variant",
            )

    @property
    def packages(self) -> tuple[str, ...]:
        """The Debian packages it has, sorted."""
        return packages_of(*LISTS[self.variant])

    @property
    def key(self) -> str:
        """A short word that is another one when anything that goes into the image is another."""
        said = hashlib.sha256(repr((self.variant, self.agents)).encode())
        for name in CONTEXT:
            said.update(file(name))
        return said.hexdigest()[:16]


def recipe(variant: Variant, names: Iterable[str]) -> Recipe:
    """A recipe with the agents of these names; kind ``invalid`` for one that is not known."""
    chosen = tuple(dict.fromkeys(names))
    unknown = [name for name in chosen if name not in AGENTS]
    if unknown:
        raise ConfigError(
            f"there is no agent called {', '.join(unknown)} to put into an image",
            kind=Kind.INVALID,
            remedy=f"choose from {', '.join(AGENTS)}; docs/images.md says how to add another",
            field="with",
        )
    if chosen and variant == "tools":
        raise ConfigError(
            "agents need Node, which the small image does not have",
            kind=Kind.INVALID,
            remedy="build the large image with them, or the small one without",
            field="with",
        )
    return Recipe(variant, tuple(AGENTS[name] for name in chosen))


def file(name: str) -> bytes:
    """A file of the project's, by its name in `podbot/data/image`."""
    return resources.files("podbot").joinpath("data", "image", name).read_bytes()


def packages_of(*lists: str) -> tuple[str, ...]:
    """The packages that these lists name."""
    lines = [line for name in lists for line in file(name).decode().splitlines()]
    found = {line.partition("#")[0].strip() for line in lines}
    return tuple(sorted(found - {""}))


def context() -> bytes:
    """The build context as a tarball, the same one each time, so that engines find it cached."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in [*((name, file(name)) for name in CONTEXT), ("ca.crt", certificates())]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def certificates() -> bytes:
    """Whom this machine trusts, for the build alone; empty where that is not in one file."""
    import ssl

    for place in (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile):
        if place:
            try:
                with open(place, "rb") as file:
                    return file.read(MAX_CERTIFICATES)
            except OSError:
                continue
    return b""
