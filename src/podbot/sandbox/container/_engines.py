"""The engines that container sandboxes use: connected once, shared while any sandbox needs them.

Remembers of each what turned out: that no socket of ours gets through to its containers.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from podbot.engine import Engine
from podbot.engine.finding.connecting import connect as _connect
from podbot.engine.finding.connecting import connect_with_runtime
from podbot.errors import ContainerError, Kind

KERNELS_OF_THEIR_OWN = ("runsc", "kata", "kata-runtime")

_VARIABLES = ("PODBOT_", "PODMAN_", "CONTAINER_", "CONTAINERS_", "DOCKER_", "XDG_RUNTIME_DIR")

_shared: weakref.WeakValueDictionary[tuple[object, ...], Engine] = weakref.WeakValueDictionary()
_streams: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def connect(given: Engine | str | None) -> Engine:
    """The engine that was named, or the one that is found; the same for all while it is used."""
    if isinstance(given, Engine):
        return given
    return _share(("endpoint", given), lambda: _connect(given))


def _share(what: tuple[object, ...], make: Callable[[], Engine]) -> Engine:
    settings = [(name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES)]
    key = (os.getpid(), what, *sorted(settings))
    with _lock:
        found = _shared.get(key)
    if found is None:
        made = make()
        with _lock:
            found = _shared.setdefault(key, made)
    return found


def with_runtime(engine: Engine, runtime: str | None, refusal: ContainerError) -> Engine | None:
    """Another engine for a container that this one would have given to another runtime.

    Podman's API takes no runtime, so podbot starts a service of its own that has it. None if that
    is not what was refused, or if there is no way.
    """
    is_about_it = refusal.kind is Kind.PROFILE_MISMATCH and "runtime:" in refusal.message
    if runtime is None or not is_about_it:
        return None
    if not engine.facts.is_podman or owner(engine) != os.geteuid():
        return None
    try:
        found = _share(("runtime", runtime), lambda: connect_with_runtime(runtime))
    except ContainerError as error:
        raise ContainerError(
            f"the runtime {runtime} cannot be used here: {error.message}",
            kind=Kind.UNSUPPORTED,
            remedy=f"install {runtime} and name it in containers.conf, or leave out runtime=",
            subject=runtime,
        ) from error
    return None if found is engine else found


def owner(engine: Engine) -> int | None:
    """Who a local engine runs as: whose socket it is."""
    if not engine.facts.local:
        return None
    try:
        return os.stat(engine.endpoint.path).st_uid
    except OSError:
        return None


def why_stream(engine: Engine, runtime: str | None) -> str | None:
    """Why a guest must be reached through the engine; None if it need not be, as far as known."""
    if not engine.facts.local:
        return "the engine is not on this machine"
    if runtime in KERNELS_OF_THEIR_OWN:
        return f"{runtime} lets no socket of the host's through"
    return _streams.get(engine)


def remember_stream(engine: Engine, why: str) -> None:
    """No socket gets through to containers of this engine: do not try again."""
    _streams[engine] = why


def pull(engine: Engine, image: str) -> None:
    """Have an image that is not there fetched; raises what says how to get it otherwise."""
    try:
        for _ in engine.images.pull(image):
            pass  # whoever wants to see it come pulls it before
    except ContainerError as error:
        raise ContainerError(
            f"there is no image {image}, and it cannot be pulled: {error.message}",
            kind=Kind.IMAGE_NOT_FOUND,
            remedy=error.remedy,
            subject=image,
        ) from error
