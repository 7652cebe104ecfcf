"""Images: is it here, pull it, import it, build it, name it, remove it.

A registry may be out of reach, and often is: an image that is not here and cannot be pulled is an
error that says how to make one. Progress comes as it happens; what registries and builds print is
made safe to show.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from podbot.engine.http import replies
from podbot.engine.http.client import Call, Purpose
from podbot.engine.http.exchange import Body, quoted
from podbot.engine.http.replies import Fields
from podbot.engine.image import _credentials
from podbot.engine.specs import check_words, missing
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass, field

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

DEFAULT_IMAGE = "localhost/podbot-sandbox:latest"
"""What containers are made of unless another image is named; `podbot image build` makes it."""

MAKE_ONE = (
    "make one with `podbot image build`, which needs no registry, or a small one with `podbot "
    f"image build --small --from scratch` (seconds, no network), and name it: {DEFAULT_IMAGE}"
)
QUIET_SECONDS = 600.0
"""How long a pull, an import or a build may say nothing."""

_TAR = {"Content-Type": "application/x-tar"}


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What the engine says of an image. ``created`` is in seconds, zero if it is not told."""

    id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    created: int = 0
    details: Fields = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a pull or a build; ``image`` is the id of what was made, once there is one."""

    text: str
    layer: str = ""
    current: int = 0
    total: int = 0
    image: str = ""


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """What to build: names for the image, the file that says how, arguments, labels.

    ``network``: what a build's commands reach, in the engine's words; its default where ``None``.
    ``target``: the stage to stop at.
    """

    tags: tuple[str, ...]
    containerfile: str = "Containerfile"
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    target: str | None = None
    cache: bool = True


class Images:
    """The images of one engine. ``image`` is a name or an id, everywhere."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def exists(self, image: str) -> bool:
        """Whether it is here."""
        path = self._engine.common(f"/images/{quoted(_given(image))}/json")
        call = Call("GET", path, Purpose(f"look for image {image}", subject=image))
        return self._engine.client.call(call, accept=(404,)).status != 404

    def inspect(self, image: str) -> ImageInfo:
        """Look at it. Kind ``image_not_found``."""
        path = self._engine.common(f"/images/{quoted(_given(image))}/json")
        answer = self._engine.client.call(Call("GET", path, self._purpose("look at", image)))
        return read_image(replies.fields(answer.json()))

    def list(self, labels: Mapping[str, str | None] | None = None) -> tuple[ImageInfo, ...]:
        """Those with all of these labels (``None``: with any value)."""
        wanted = [
            name if value is None else f"{name}={value}" for name, value in (labels or {}).items()
        ]
        query = {"filters": json.dumps({"label": wanted})} if wanted else {}
        path = self._engine.common("/images/json")
        answer = self._engine.client.call(Call("GET", path, Purpose("list images"), query))
        return tuple(read_image(entry) for entry in replies.objects(answer.json()))

    def ensure(self, image: str) -> Iterator[Progress]:
        """Pull it if it is not here. Exhaust the iterator: it is what does the work."""
        if not self.exists(image):
            yield from self.pull(image)

    def pull(self, image: str) -> Iterator[Progress]:
        """Pull it, telling how far it is. Kind ``pull_failed``."""
        name, tag = split_name(_given(image))
        purpose = Purpose(
            f"pull image {image}",
            Kind.PULL_FAILED,
            image,
            remedies={Kind.PULL_FAILED: f"check its name and the registry, or {MAKE_ONE}"},
        )
        query = {"fromImage": name, "tag": tag}
        path = self._engine.common("/images/create")
        headers = _credentials.headers(self._engine, image.strip(), os.environ)
        return self._steps(Call("POST", path, purpose, query, headers, seconds=QUIET_SECONDS))

    def import_tar(self, tree: Body, image: str, changes: Sequence[str] = ()) -> str:
        """Make an image of a tar of a root folder; gives its id.

        ``changes`` are lines of a Containerfile, as in ``CMD ["sh"]`` or ``LABEL a=b``.
        """
        name, tag = split_name(_given(image))
        purpose = Purpose(f"import image {image}", Kind.BUILD_FAILED, image)
        if self._engine.facts.is_podman:
            # The shared call leaves out the tag.
            path = self._engine.libpod("/images/import")
            query = [("reference", f"{name}:{tag}")]
        else:
            path = self._engine.common("/images/create")
            query = [("fromSrc", "-"), ("repo", name), ("tag", tag)]
        query += [("changes", line) for line in changes]
        path += "?" + "&".join(f"{key}={quoted(value)}" for key, value in query)
        call = Call("POST", path, purpose, headers=_TAR, body=tree, seconds=QUIET_SECONDS)
        made = ""
        for step in self._steps(call):
            made = step.image or made
        return made or self.inspect(image).id

    def build(self, context: Body, order: BuildOrder) -> Iterator[Progress]:
        """Build an image from a context (a tar), telling what happens. Kind ``build_failed``."""
        if not order.tags:
            raise missing("tag", "name the image that is to be built")
        purpose = Purpose(
            f"build image {order.tags[0]}",
            Kind.BUILD_FAILED,
            order.tags[0],
            remedies={Kind.BUILD_FAILED: "mend what the last lines of the build complain of"},
        )
        query = [("dockerfile", order.containerfile)]
        query += [("t", _given(tag)) for tag in order.tags]
        query += [("buildargs", json.dumps(dict(order.arguments)))] if order.arguments else []
        query += [("labels", json.dumps(dict(order.labels)))] if order.labels else []
        query += [("networkmode", order.network)] if order.network else []
        query += [("target", order.target)] if order.target else []
        query += [] if order.cache else [("nocache", "true")]
        query += [("rm", "true"), ("forcerm", "true")]
        path = self._engine.common("/build")
        path += "?" + "&".join(f"{key}={quoted(value)}" for key, value in query)
        call = Call("POST", path, purpose, headers=_TAR, body=context, seconds=QUIET_SECONDS)
        return self._steps(call)

    def tag(self, image: str, name: str) -> None:
        """Give it another name."""
        repository, tag = split_name(_given(name))
        path = self._engine.common(f"/images/{quoted(_given(image))}/tag")
        query = {"repo": repository, "tag": tag}
        self._engine.client.call(Call("POST", path, self._purpose("name", image), query))

    def remove(self, image: str, *, force: bool = False, missing_ok: bool = True) -> bool:
        """Remove a name, and the image with its last one; says whether there was one."""
        path = self._engine.common(f"/images/{quoted(_given(image))}")
        query = {"force": "true" if force else "false"}
        call = Call("DELETE", path, self._purpose("remove", image), query)
        try:
            self._engine.client.call(call)
        except ContainerError as error:
            if missing_ok and error.kind == Kind.IMAGE_NOT_FOUND:
                return False
            raise
        return True

    def _steps(self, call: Call) -> Iterator[Progress]:
        """The steps in a reply of many JSON lines; one of them may be the error."""
        with self._engine.client.stream(call) as reply:
            for line in reply.lines():
                step = replies.fields(replies.parse(line))
                said = replies.text(step, "error")
                if said:
                    purpose = call.purpose
                    raise ContainerError(
                        f"cannot {purpose.doing}: {replies.visible(said)}",
                        kind=purpose.kind,
                        remedy=purpose.remedies.get(purpose.kind),
                        subject=purpose.subject,
                    )
                yield read_step(step)

    def _purpose(self, doing: str, image: str) -> Purpose:
        return Purpose(
            f"{doing} image {image}",
            subject=image,
            missing=Kind.IMAGE_NOT_FOUND,
            conflict=Kind.IN_USE,
            remedies={
                Kind.IMAGE_NOT_FOUND: f"list images with `podbot image list`, or {MAKE_ONE}",
                Kind.IN_USE: "remove the containers that are made of it first",
            },
        )


def split_name(image: str) -> tuple[str, str]:
    """A name and its tag, or its digest; ``latest`` where it has neither."""
    name, at, digest = image.partition("@")
    if at:
        return name, digest
    # A colon before the last slash belongs to the registry's port.
    slash, colon = image.rfind("/"), image.rfind(":")
    return (image[:colon], image[colon + 1 :]) if colon > slash else (image, "latest")


def read_image(found: Fields) -> ImageInfo:
    """From what ``inspect`` or the list says."""
    created = found.get("Created")
    labels = "Labels" if "Labels" in found else None
    return ImageInfo(
        id=replies.text(found, "Id"),
        names=tuple(name for name in replies.texts(found, "RepoTags") if "<none>" not in name),
        labels=replies.text_map(found if labels else replies.below(found, "Config"), "Labels"),
        size=replies.whole(found, "Size"),
        created=created if isinstance(created, int) else 0,
        details=found,
    )


def read_step(step: Fields) -> Progress:
    """From a line of a pull's, an import's or a build's reply."""
    detail = replies.below(step, "progressDetail")
    made = replies.text(replies.below(step, "aux"), "ID")
    text = replies.text(step, "stream") or replies.text(step, "status")
    layer = replies.text(step, "id") or replies.text(step, "Id")
    for word in (layer, text):
        # An import ends with the id of what it made, wherever the engine puts it.
        if word.startswith("sha256:") and len(word) == 71:
            made = made or word
    return Progress(
        text=replies.visible(text),
        layer=replies.visible(layer),
        current=replies.whole(detail, "current"),
        total=replies.whole(detail, "total"),
        image=made,
    )


def _given(image: str) -> str:
    if not image.strip():
        raise missing("image", f"name an image, or {MAKE_ONE}")
    check_words("image", (image,))
    return image.strip()
