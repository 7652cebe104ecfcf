"""Files into a container and out of it, as tar streams in bounded memory.

For set-up (credentials, a first copy) and for what lies outside a sandbox's workspace. Going in,
the archive is the caller's; coming out it is hostile, and `download` writes it with care.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from podbot import tar_reading
from podbot.engine import _unpacking
from podbot.engine._unpacking import Unpacked, UnpackLimits
from podbot.engine.http.client import Call, Purpose, Streaming
from podbot.engine.http.exchange import CHUNK, quoted
from podbot.errors import ContainerError, Kind

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

QUIET_SECONDS = 120.0

Source = bytes | BinaryIO | Iterable[bytes]


def put(engine: Engine, container: str, path: str, archive: Source) -> None:
    """Unpack a tar into a folder of a container. Kind ``upload_failed``."""
    purpose = Purpose(
        f"upload to {path} in container {container}",
        Kind.UPLOAD_FAILED,
        container,
        remedies={
            Kind.UPLOAD_FAILED: "check that the container and the folder in it are there, and that"
            " there is room"
        },
    )
    call = Call(
        "PUT",
        engine.common(f"/containers/{quoted(container)}/archive"),
        purpose,
        {"path": path, "noOverwriteDirNonDir": "true"},
        {"Content-Type": "application/x-tar"},
        body=_checked(archive, container),
        seconds=QUIET_SECONDS,
    )
    answer = engine.client.call(call)
    if answer.data.strip():
        # Podman has said yes before it is done, and adds what went wrong then.
        from podbot.engine.http.client import said_in

        raise ContainerError(
            f"cannot {purpose.doing}: {said_in(answer.data)}",
            kind=Kind.UPLOAD_FAILED,
            remedy=purpose.remedies[Kind.UPLOAD_FAILED],
            subject=container,
        )


def get(engine: Engine, container: str, path: str) -> Streaming:
    """The tar of a path in a container, as it comes. Kinds ``not_found``, ``download_failed``."""
    purpose = Purpose(
        f"download {path} from container {container}",
        Kind.DOWNLOAD_FAILED,
        container,
        missing=Kind.NOT_FOUND,
        remedies={Kind.NOT_FOUND: "check the name of the container and the path in it"},
    )
    route = engine.common(f"/containers/{quoted(container)}/archive")
    return engine.client.stream(Call("GET", route, purpose, {"path": path}, seconds=QUIET_SECONDS))


def download(
    engine: Engine, container: str, path: str, destination: str, limits: UnpackLimits | None = None
) -> Unpacked:
    """Copy a file or folder of a container to ``destination``, which must not exist yet.

    Links and devices are left out and reported. Kinds of `get`, and of `unpacking.unpack`.
    """
    with get(engine, container, path) as stream:
        return _unpacking.unpack(stream.read_some, destination, limits)


def _parts(archive: Source) -> Iterator[bytes]:
    if isinstance(archive, bytes):
        view = memoryview(archive)
        for start in range(0, len(view), CHUNK):
            yield bytes(view[start : start + CHUNK])
    elif hasattr(archive, "read"):
        while part := archive.read(CHUNK):
            yield part
    else:
        yield from archive


def _checked(archive: Source, container: str) -> Iterator[bytes]:
    """The archive, if it begins and ends like one: engines take garbage for an empty one."""
    size, first = 0, b""
    parts = _parts(archive)
    for part in parts:
        first += part
        if len(first) >= tar_reading.BLOCK:
            break
    if not tar_reading.looks_like_tar(first):
        raise _not_a_tar(container)
    yield first
    size = len(first)
    for part in parts:
        size += len(part)
        yield part
    if size % tar_reading.BLOCK:
        raise _not_a_tar(container)


def _not_a_tar(container: str) -> ContainerError:
    return ContainerError(
        f"cannot upload to container {container}: what was given is not a whole tar archive",
        kind=Kind.UPLOAD_FAILED,
        remedy="give a tar, for instance one of podbot.engine.pack",
        subject=container,
    )
