"""The containers that podbot made, told from those that only look like it.

A container inherits the labels of its image. An image that was made of a container of podbot's, or
that somebody labelled so on purpose, would make its containers podbot's, and `gc` and `stop --all`
remove those. So a mark that the image brings counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podbot.engine import labels
from podbot.engine.labels import OwnerState
from podbot.errors import ContainerError, Kind

if TYPE_CHECKING:
    from podbot.engine.containers import ContainerSummary
    from podbot.engine.engine import Engine


def owned(engine: Engine) -> tuple[ContainerSummary, ...]:
    """Every container of podbot's, running or not."""
    found = engine.containers.list({labels.OWNER: None})
    images = {each.image_id for each in found if each.image_id}
    brought = {image: _brought(engine, image) for image in sorted(images)}
    return tuple(each for each in found if brought.get(each.image_id) != each.labels[labels.OWNER])


def owner_state(engine: Engine, container: ContainerSummary) -> OwnerState:
    """What is known of the process that made a container.

    An engine on another machine is shared by machines, and two that were made of one image have
    the same id. Only their boots differ, and which of the two has ended cannot be told.
    """
    label = container.labels.get(labels.OWNER, "")
    state, owner = labels.owner_state(label), labels.parse(label)
    elsewhere = owner is not None and owner.boot != labels.this_process().boot
    if state == "dead" and elsewhere and not engine.endpoint.is_local:
        return "unknown"
    return state


def _brought(engine: Engine, image: str) -> str | None:
    """The mark that an image gives its containers, if any."""
    try:
        return engine.images.inspect(image).labels.get(labels.OWNER)
    except ContainerError as error:
        if error.kind is not Kind.IMAGE_NOT_FOUND:
            raise
        return None  # it was removed under its containers, and can tell nothing any more
