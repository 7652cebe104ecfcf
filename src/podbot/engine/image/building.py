"""Building podbot's images: a base, then what the Containerfile says, by the engine.

The base comes from Debian packages (`debian`), from this machine's files (`scratch`), or is any
image the engine has or can pull. No registry is needed for the first two. What is said on the way
goes to a function of the caller's; nothing is printed. A build that is interrupted leaves nothing
that has a name; a bootstrapped base is kept, so that the next build is quick.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from podbot.engine.image import _debian, _scratch, recipes
from podbot.engine.image.images import DEFAULT_IMAGE, BuildOrder, ImageInfo, Progress
from podbot.engine.image.recipes import Recipe
from podbot.errors import ConfigError, ContainerError, Kind
from podbot.frozen import dataclass

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

DEBIAN, SCRATCH = "debian", "scratch"
BASE_NAME = "localhost/podbot-debian"

VARIANT_LABEL = "podbot.image"
AGENTS_LABEL = "podbot.image.agents"
KEY_LABEL = "podbot.image.recipe"
SOURCE_LABEL = "podbot.image.from"

KEPT_LINES = 5
# Variables that a build passes on: a machine behind a proxy builds through it.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_REGISTRY = ("npm_config_registry", "NPM_CONFIG_REGISTRY")

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image to build.

    - ``source``: ``debian`` (bootstrapped from packages), ``scratch`` (this machine's own files;
      for the small variant only), or the name of an image to build on.
    - ``recipe``: which variant, and which agents.
    - ``mirror``: where Debian packages come from, if not from Debian itself.
    - ``network``: what the build's commands reach, in the engine's words; None is its own default.
    - ``fresh``: use nothing of earlier builds.
    """

    recipe: Recipe
    source: str = DEBIAN
    tag: str = DEFAULT_IMAGE
    mirror: str | None = None
    network: str | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image of podbot's: ``variant`` and ``agents`` (``name@version``) as its labels say."""

    id: str
    names: tuple[str, ...]
    variant: str
    agents: tuple[str, ...]
    source: str
    size: int
    created: int
    current: bool
    """Whether it was made by the recipe of this version of podbot."""


def build(engine: Engine, request: ImageRequest, say: Say) -> BuiltImage:
    """Build an image and name it. Kinds ``build_failed``, ``missing_dependency``, ``pull_failed``
    and ``invalid``."""
    if request.source == SCRATCH:
        _build_from_files(engine, request, say)
    else:
        _build_on_base(engine, request, say)
    return read(_as_listed(engine, engine.images.inspect(request.tag)))


def _as_listed(engine: Engine, made: ImageInfo) -> ImageInfo:
    """The same image in the words of the list, whose sizes and times engines tell otherwise."""
    for image in engine.images.list({VARIANT_LABEL: None}):
        if image.id == made.id and set(image.names) & set(made.names):
            return image
    return made


def built(engine: Engine) -> tuple[BuiltImage, ...]:
    """Every image of podbot's that the engine has, the newest first."""
    found = [read(image) for image in engine.images.list({VARIANT_LABEL: None}) if image.names]
    return tuple(sorted(found, key=lambda image: (-image.created, image.names)))


def read(image: ImageInfo) -> BuiltImage:
    """What the labels of an image say."""
    variant = image.labels.get(VARIANT_LABEL, "")
    words = image.labels.get(AGENTS_LABEL, "").split()
    return BuiltImage(
        id=image.id,
        names=image.names,
        variant=variant,
        agents=tuple(words),
        source=image.labels.get(SOURCE_LABEL, ""),
        size=image.size,
        created=image.created,
        current=image.labels.get(KEY_LABEL) == _recipe_of(variant, words).key,
    )


def _recipe_of(variant: str, words: list[str]) -> Recipe:
    """The recipe that would make such an image now."""
    names = [word.partition("@")[0] for word in words]
    known = tuple(recipes.AGENTS[name] for name in names if name in recipes.AGENTS)
    return Recipe("tools" if variant == "tools" else "sandbox", known)


def _labels(request: ImageRequest) -> dict[str, str]:
    agents = " ".join(f"{agent.name}@{agent.version}" for agent in request.recipe.agents)
    return {
        VARIANT_LABEL: request.recipe.variant,
        AGENTS_LABEL: agents,
        KEY_LABEL: request.recipe.key,
        SOURCE_LABEL: request.source,
    }


# From this machine's files


def _build_from_files(engine: Engine, request: ImageRequest, say: Say) -> None:
    if request.recipe.variant != "tools":
        raise ConfigError(
            "an image of this machine's own files can only be the small one",
            kind=Kind.INVALID,
            remedy="add --small, or use --from debian, which has all that agents need",
            field="from",
        )
    say("gathering Python, git and the usual commands of this machine")
    root = _scratch.root()
    say(f"importing {len(root) >> 20} MiB")
    changes = [
        "ENV LANG=C.UTF-8",
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "WORKDIR /workspace",
        'CMD ["sleep", "infinity"]',
        *(f'LABEL {name}="{value}"' for name, value in _labels(request).items()),
    ]
    engine.images.import_tar(root, request.tag, changes)


# On a base


def _build_on_base(engine: Engine, request: ImageRequest, say: Say) -> None:
    if request.source == DEBIAN:
        base = _bootstrapped(engine, request, say)
    else:
        base = request.source
        for step in engine.images.ensure(base):
            _tell(step, say)
    recipe = request.recipe
    order = BuildOrder(
        tags=(request.tag,),
        containerfile=recipes.CONTAINERFILE,
        arguments={
            "BASE": base,
            "AGENTS": " ".join(agent.pinned for agent in recipe.agents),
            **_surroundings(),
        },
        labels=_labels(request),
        network=request.network,
        cache=not request.fresh,
        target=recipe.variant,
    )
    say(f"building {request.tag} on {base}")
    last: deque[str] = deque(maxlen=KEPT_LINES)

    def tell(text: str) -> None:
        last.append(text)
        say(text)

    try:
        for step in engine.images.build(recipes.context(), order):
            _tell(step, tell)
    except ContainerError as error:
        if error.kind is not Kind.BUILD_FAILED:
            raise
        raise ContainerError(
            "\n".join((error.message, *(f"  {line}" for line in last))),
            kind=Kind.BUILD_FAILED,
            remedy="if it could not reach the network try --network host; else mend what the last "
            "lines complain of",
            subject=request.tag,
        ) from error


def _tell(step: Progress, say: Say) -> None:
    for line in step.text.splitlines():
        if line.strip():
            say(line.rstrip() if not step.layer else f"{step.layer}: {line.rstrip()}")


def _surroundings() -> dict[str, str]:
    found = {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}
    for name in _REGISTRY:
        if os.environ.get(name):
            found["NPM_REGISTRY"] = os.environ[name]
    return found


def _bootstrapped(engine: Engine, request: ImageRequest, say: Say) -> str:
    """The base with all packages in it; made if it is not here."""
    root = _debian.DebianRoot(request.recipe.packages, mirror=request.mirror)
    name = f"{BASE_NAME}:{root.key}"
    if not request.fresh and engine.images.exists(name):
        return name
    pieces = _debian.bootstrap(root, say)  # fails at once if it has nothing to work with
    try:
        say(f"bootstrapping Debian {root.suite} from packages, about a minute")
        # The first piece comes when all is installed: what fails before fails without the engine.
        first = next(pieces, b"")
        say("importing it")
        engine.images.import_tar(itertools.chain([first], pieces), name)
    finally:
        pieces.close()
    return name
