"""Making and starting one container, and what it means when an engine cannot."""

from __future__ import annotations

import time

from podbot.engine import ContainerSpec, Created, Engine
from podbot.errors import ContainerError, Kind, LaunchError
from podbot.sandbox.container import _engines
from podbot.sandbox.container._identity import Identity
from podbot.sandbox.container._running import Running
from podbot.sandbox.container.place import Visitor

NO_MAPPING = "keep-id requires additional"
MAPPING_TRIES = 10
MAPPING_PAUSE = 0.05


class SocketUselessError(Exception):
    """The container ended before its guest came: no socket gets through, or it cannot run."""


def create(engine: Engine, spec: ContainerSpec) -> Created:
    """Create a container; an image that is not there is pulled, unless it can only be made here."""
    try:
        return _mapped(engine, spec)
    except ContainerError as error:
        if error.kind is not Kind.IMAGE_NOT_FOUND or spec.image.startswith("localhost/"):
            raise
    _engines.pull(engine, spec.image)
    return _mapped(engine, spec)


def _mapped(engine: Engine, spec: ContainerSpec) -> Created:
    """Create a container; once more if Podman could not read which ids it may map.

    It reads them by a library that does not bear two readers at once, and says then what it says
    where there are none.
    """
    for left in reversed(range(MAPPING_TRIES)):
        try:
            return engine.containers.create(spec)
        except ContainerError as error:
            if NO_MAPPING not in error.message:
                raise
            if not left:
                raise ContainerError(
                    error.message,
                    kind=Kind.USERNS_DENIED,
                    remedy="give this user ids to map: sudo usermod --add-subuids 100000-165535 "
                    "--add-subgids 100000-165535 USER, then: podman system migrate",
                    subject=spec.image,
                ) from error
        time.sleep(MAPPING_PAUSE)
    raise AssertionError("unreachable")  # pragma: no cover - the last try returns or raises


def start(running: Running, image: str) -> None:
    """Start a container."""
    try:
        running.engine.containers.start(running.id)
    except ContainerError as error:
        said = error.message.lower()
        lacks = "python3" in said and ("not found" in said or "no such file" in said)
        if error.kind is Kind.START_FAILED and lacks:
            raise no_guest(image, "there is no python3 in it") from error
        raise


def verify(running: Running) -> None:
    """See that it runs under the filter that was asked for, before anything but the guest does."""
    try:
        running.engine.containers.verify_filter(running.id, running.spec)
    except ContainerError as error:
        if error.kind is not Kind.CONTAINER_NOT_FOUND:  # it has ended: the channel will tell
            raise


def check_alive(running: Running) -> None:
    """Whether there is still a guest to wait for."""
    try:
        if running.engine.containers.inspect(running.id).running:
            return
    except ContainerError as error:
        if error.kind is not Kind.CONTAINER_NOT_FOUND:
            raise
    raise SocketUselessError("its guest did not connect to the socket")


def check_visitor(visitor: Visitor, who: Identity) -> None:
    """See that it is the guest who came: nobody else could, and nobody else may."""
    if visitor.uid != who.outside[0] or not visitor.first:
        raise LaunchError(
            f"someone else connected to the guest's socket: process {visitor.pid} "
            f"of user {visitor.uid}",
            kind=Kind.PROTOCOL,
            remedy="check who else can act as you, or as root, on this machine",
        )


def no_guest(image: str, said: str) -> LaunchError:
    """The error for an image in which the guest does not run."""
    last = said.splitlines()[-1] if said else "it said nothing"
    return LaunchError(
        f"the guest does not run in a container of {image}: {last}",
        kind=Kind.START_FAILED,
        remedy="use an image with Python 3.8 or newer, such as podbot's own "
        "(make it with `podbot image build`)",
    )
