"""From choices to a container: the spec to create, and the guest's first request.

Pure: what goes in are values, what comes out are values, so that a test can look at all of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from podbot.engine import labels
from podbot.engine.facts import Facts
from podbot.engine.profiles import PRIVILEGED, TOOLS, Profile, Tmpfs
from podbot.engine.specs import BindMount, ContainerSpec, Mount
from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass, replace
from podbot.sandbox import over_stream
from podbot.sandbox.container import _kit, place
from podbot.sandbox.container import _target as targets
from podbot.sandbox.container._engines import KERNELS_OF_THEIR_OWN
from podbot.sandbox.container._identity import Identity
from podbot.sandbox.container.settings import WORKDIR, Settings
from podbot.sandbox.limits import MIB

KIND = "sandbox"
REMOTE_BYTES = 256 * MIB
"""What a workspace in memory may hold when nobody says otherwise."""
NUMBERS_A_START = 1_000_000
"""How far apart the process numbers of one start and the next are."""

HOST_ONLY = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "USER"}
)
"""Variables that tell of the host's folders, users and locales, which an image does not have."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is known when a container is planned.

    ``workspace`` is none on an engine that does not see this machine's files. ``stream``: the guest
    is reached through the engine.
    """

    settings: Settings
    facts: Facts
    identity: Identity
    workspace: Mount | None
    name: str
    door: Path
    stream: bool = False
    selinux: bool = False


def spec(draft: Draft) -> ContainerSpec:
    """The container to create."""
    settings = draft.settings
    mounts: list[Mount] = []
    line = over_stream.command()
    if draft.workspace is not None:
        mounts = [BindMount(str(_kit.path()), _kit.INSIDE, read_only=True), draft.workspace]
        mounts += [BindMount(path, path) for path in _writable(settings)]
        line = _kit.command("0 1")
    if not draft.stream:
        mounts.append(BindMount(str(draft.door), place.INSIDE, read_only=True))
        port = settings.policy.network.port
        line = _kit.command(f"{place.INSIDE}/{place.SOCKET} {port or ''}")
    session = {} if settings.session is None else {labels.SESSION: settings.session}
    return ContainerSpec(
        image=settings.image,
        entrypoint=(),
        command=tuple(line),
        profile=profile(draft),
        labels={labels.KIND: KIND, **session},
        mounts=tuple(mounts),
        name=draft.name,
        workdir="/",
        runtime=settings.runtime,
        stdin=draft.stream,
        logs=False,
        # Whatever becomes of us: when the guest has ended, the container is gone too.
        auto_remove=True,
        killed_at_once=True,
    )


def profile(draft: Draft) -> Profile:
    """The profile for tools, narrowed to what was asked for, or widened to all there is."""
    settings, limits = draft.settings, draft.settings.limits
    tmpfs = TOOLS.tmpfs
    if draft.workspace is None:
        tmpfs += (Tmpfs(WORKDIR, limits.disk or REMOTE_BYTES),)
    return replace(
        PRIVILEGED if settings.privileged else TOOLS,
        seccomp="default" if settings.seccomp == "engine" else TOOLS.seccomp,
        user=draft.identity.user,
        userns=draft.identity.userns,
        network="none" if settings.policy.network.separate else "host",
        cpu=limits.cpu,
        memory=limits.memory,
        pids=limits.pids,
        selinux="disable" if draft.selinux else "default",
        tmpfs=tmpfs,
        # The guest is process 1 and reaps: one process less, none of which can be killed inside.
        init=False,
    )


def config(
    settings: Settings, rlimits: dict[str, int], starts: int, rg: str | None, runtime: str = ""
) -> dict[str, object]:
    """The guest's first request; ``starts`` is how often this sandbox was started before.

    What a template of interpreters counts on is the host's kernel: others are not asked for it.
    """
    return {
        "workdir": WORKDIR,
        "root": WORKDIR if settings.confined else "/",
        "env": environment(settings),
        "inherit": True,
        "python": settings.policy.python,
        "rg": rg,
        "rlimits": rlimits,
        "numbers_after": starts * NUMBERS_A_START,
        "fresh_interpreters": runtime in KERNELS_OF_THEIR_OWN,
    }


def environment(settings: Settings) -> dict[str, str]:
    """What commands see besides the image's own variables."""
    policy = settings.policy
    passed = {name: value for name, value in policy.passed_on().items() if name not in HOST_ONLY}
    own = {"HOME": "/tmp", "TMPDIR": "/tmp"}  # noqa: S108 - the container's own
    return {**passed, **own, **policy.variables_set()}


def _writable(settings: Settings) -> list[str]:
    found = []
    for given in settings.policy.writable:
        try:
            path = os.path.realpath(os.path.expanduser(given), strict=True)
        except OSError as error:
            raise LaunchError(
                f"the policy makes {given} writable, but: {error.strerror}",
                kind=Kind.INVALID,
                remedy="create it first, or leave it out of Policy.writable",
            ) from None
        targets.refuse_writable(path, settings.policy)
        found.append(path)
    return found
