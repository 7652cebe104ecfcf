"""What was applied of each run, as its journals tell: for lists, which need nothing of undoing.

Reads journals only, and changes nothing.
"""

from __future__ import annotations

from podbot.changes.applying import journal
from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Application:
    """One application of changes to the host, as a list shows it.

    ``left`` are things that could not be taken back when it was undone, each with the reason;
    with any of them it is not ``undone``, and can be once more.
    """

    id: str
    layer_id: str
    when: float
    paths: int
    undone: bool
    left: tuple[str, ...] = ()


def applications(layer_id: str) -> list[Application]:
    """What was applied from a layer, oldest first."""
    found = []
    for own in journal.of_layer(layer_id):
        if not own.marked(journal.DONE):
            continue
        made = own.summary()
        found.append(
            Application(own.id, layer_id, made.created, made.paths, own.is_undone, own.left)
        )
    return found
