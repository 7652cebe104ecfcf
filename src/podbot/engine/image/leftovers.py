"""What a build leaves in Podman's storage when the service that ran it is gone: find and remove it.

A service that is told that nobody waits any more tidies up by itself, once the step it is at has
ended. One that podbot started ends with podbot, in the middle of that step; then the containers
of the steps stay, each with a copy of the image. They are told by their names, which begin with the
ids of the steps that the build has shown, and by not having been there before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from podbot.engine.finding.connecting import OWN_SERVICE
from podbot.engine.http import replies
from podbot.engine.http.client import Call, Purpose

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

Say = Callable[[str], object]

_STEP = re.compile(r"--> (?:Using cache )?([0-9a-f]{11})")
_BASE = re.compile(r"STEP 1/\d+: FROM (\S+)")
_WORKING = re.compile(r"(.+)-working-container(-\d+)?")


class Leftovers:
    """Watches a build, so that what it leaves can be removed."""

    def __init__(self, engine: Engine):
        self.expected = engine.found_by == OWN_SERVICE
        """Whether nobody else would tidy up."""
        self._before = set(_working(engine)) if self.expected else set()
        self._steps: set[str] = set()

    def hearing(self, say: Say) -> Say:
        """The same function, listened to."""

        def heard(text: str) -> None:
            self._steps.update(_STEP.findall(text))
            # The first step's container is called after the image that it begins with.
            self._steps.update(
                name.rpartition("/")[2].split(":")[0] for name in _BASE.findall(text)
            )
            say(text)

        return heard

    def remove(self, engine: Engine) -> int:
        """Remove them; says how many there were."""
        count = 0
        for id, name in _working(engine).items():
            found = _WORKING.fullmatch(name)
            if id in self._before or found is None:
                continue
            if any(found[1].startswith(step) for step in self._steps):
                engine.containers.remove(id)
                count += 1
        return count


def _working(engine: Engine) -> dict[str, str]:
    """The containers of builds, by id, with their names."""
    query = {"all": "true", "external": "true"}
    call = Call("GET", engine.libpod("/containers/json"), Purpose("list containers"), query)
    found = replies.objects(engine.client.call(call).json())
    named = {replies.text(each, "Id"): replies.texts(each, "Names") for each in found}
    return {id: names[0] for id, names in named.items() if names and _WORKING.fullmatch(names[0])}
