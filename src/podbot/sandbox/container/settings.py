"""What a caller may choose about a container sandbox: one value, checked before any engine call."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Literal, TypedDict

from podbot.engine.image.images import DEFAULT_IMAGE
from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass, field
from podbot.sandbox.layers import check_title
from podbot.sandbox.limits import GIB, Limits
from podbot.sandbox.policy import Policy

if TYPE_CHECKING:
    from podbot.engine import Engine
    from podbot.sandbox.layers import Layer

Target = str | os.PathLike[str]
Workspace = Literal["review", "copy", "bind"]
Runtime = Literal["runc", "crun", "runsc", "kata"]
Seccomp = Literal["podbot", "engine"]

BACKEND = "container"
"""What `open` calls this backend."""
WORKDIR = "/workspace"
"""Where the workspace is inside, whatever it is outside."""
NOBODY = 65534
"""The user and the group inside."""
INSTEAD_OF_A_USER = (
    "put what needs root into the image, or open a container with privileged=True and no target, "
    "where root may be anybody; people look in with `podbot exec NAME --user root -- COMMAND`"
)
"""What to do about a user that nothing can be run as. The engine could start it, but where it runs
as root its root is the host's, and nothing there ends what runs out of time."""
CONTAINER_LIMITS = Limits(cpu=1.0, memory=GIB)
"""What a container may use when nobody says otherwise: one processor, 1 GiB, no swap."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}")


class ContainerOptions(TypedDict, total=False):
    """The options of `ContainerSandbox` and of ``open("container", …)``; see `Settings`."""

    image: str
    workspace: Workspace
    engine: Engine | str | None
    runtime: Runtime | None
    policy: Policy | None
    limits: Limits | None
    name: str | None
    discard: bool
    layer: Layer | None
    hand_over: bool
    lazy: bool
    restart: bool
    idle: float | None
    confined: bool
    privileged: bool
    title: str | None
    seccomp: Seccomp
    session: str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """Every choice about one container sandbox.

    - ``target``: the host folder it works on; none gives it an empty one that goes with it.
    - ``workspace``: ``review`` (copy-on-write, for review), ``copy`` (a whole copy, for review
      too), ``bind`` (the folder itself, changed at once).
    - ``image``: with a Python of 3.8 or newer; nothing else is asked of it.
    - ``engine``: an engine, or an endpoint; default what `podbot.engine.connect` finds.
    - ``runtime``: ``runc``, ``crun``, ``runsc`` or ``kata``; default the engine's.
    - ``name``: of the container; default one of its own.
    - ``discard``: remove the layer at close; else it stays when it holds changes.
    - ``layer``: a kept layer to go on in; its target is that of the sandbox, and it stays.
    - ``hand_over``: on an engine that runs as root, give a bound folder and all in it to the
      user inside (65534). For folders that were made for this.
    - ``lazy``: start at the first verb, not at once.
    - ``restart``: start again, over the same files, when the container was lost. The call that
      finds it lost still raises; the next one starts it.
    - ``idle``: stop the container after so many seconds without a call; the next call starts it.
    - ``confined``: the file verbs stay below the workspace; commands see the image as ever.
    - ``privileged``: root inside, with every capability and device that the engine has to give;
      where the engine runs as root, it can take over the machine. Without a target only.
    - ``title``: what the work is called where its changes are listed.
    - ``seccomp``: the filter of system calls, ``podbot``'s own or the ``engine``'s, which lets
      namespaces be made inside. A Podman on another machine has only its own.
    - ``session``: the id of the session it works for, which `podbot ps` shows.
    """

    target: Target | None = None
    image: str = DEFAULT_IMAGE
    workspace: Workspace = "review"
    engine: Engine | str | None = None
    runtime: Runtime | None = None
    policy: Policy = field(default_factory=Policy)
    limits: Limits = CONTAINER_LIMITS
    name: str | None = None
    discard: bool = False
    layer: Layer | None = None
    hand_over: bool = False
    lazy: bool = False
    restart: bool = True
    idle: float | None = None
    confined: bool = False
    privileged: bool = False
    title: str | None = None
    seccomp: Seccomp = "podbot"
    session: str | None = None

    @classmethod
    def of(cls, target: Target | None, options: ContainerOptions) -> Settings:
        """The choices, with every default filled in."""
        given = {key: value for key, value in options.items() if value is not None}
        return cls(target, **given)  # type: ignore[arg-type]  # the keys are those of the options

    def __post_init__(self) -> None:
        for name in ("privileged", "hand_over", "discard", "confined", "lazy", "restart"):
            if not isinstance(getattr(self, name), bool):  # the text "false" would count as yes
                value = getattr(self, name)
                raise _refused(f"{name}={value!r:.80} is neither True nor False", "pass a bool")
        check_title(self.title)
        if self.workspace not in ("review", "copy", "bind"):
            raise _refused(
                f"workspace={self.workspace!r} is not known", 'use "review", "copy" or "bind"'
            )
        if self.seccomp not in ("podbot", "engine"):
            raise _refused(f"seccomp={self.seccomp!r} is not known", 'use "podbot" or "engine"')
        if self.runtime not in (None, "runc", "crun", "runsc", "kata"):
            raise _refused(
                f"runtime={self.runtime!r} is not known",
                'use "runc", "crun", "runsc" or "kata", or leave it out for the engine\'s',
            )
        given: object = self.image  # callers need not be typed
        if not isinstance(given, str) or not given.strip():
            raise LaunchError(
                "no image was named",
                kind=Kind.MISSING_REQUIRED,
                remedy="name one with Python in it, or leave it out for podbot's own",
            )
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise _refused(
                f"{self.name!r} cannot be the name of a container",
                "use letters, digits, '_', '.' and '-', a letter or a digit first",
            )
        if self.session is not None and not _SESSION.fullmatch(self.session):
            raise _refused(
                f"{self.session!r:.80} cannot be the id of a session",
                "use up to 64 letters, digits, '_', '.' and '-', a letter or a digit first",
            )
        if self.idle is not None and not (math.isfinite(self.idle) and self.idle > 0):
            raise _refused(f"idle={self.idle!r} is not a time", "pass seconds above zero, or None")
        if self.layer is not None and (self.target is not None or self.discard):
            raise _refused(
                "a sandbox that goes on in a layer keeps the target and the changes of that layer",
                "leave out target and discard",
            )
        if self.privileged and (
            self.target is not None or self.layer is not None or self.policy.writable
        ):
            raise no_folder()
        if self.workspace == "bind" and (self.target is None or self.layer is not None):
            raise _refused(
                'workspace="bind" works on a folder itself, and none is named',
                "name it as target",
            )


def no_folder() -> LaunchError:
    """The refusal of a folder for a privileged container."""
    return _refused(
        "a privileged container is given no folder: nothing would keep it to that one",
        "leave out privileged, or the target and what is writable",
    )


def _refused(message: str, remedy: str) -> LaunchError:
    return LaunchError(message, kind=Kind.INVALID, remedy=remedy)
