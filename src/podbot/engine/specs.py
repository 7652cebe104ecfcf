"""What a container is to be: image, command, environment, mounts, names, and its `Profile`.

Values with checks, made before any engine is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from podbot.engine.profiles import TOOLS, Profile
from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass, field, frozen_dict

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,199}")


@dataclass(frozen=True, slots=True)
class BindMount:
    """A path of the host's, seen at ``target``."""

    source: str
    target: str
    read_only: bool = False

    def __post_init__(self) -> None:
        _check_paths(self, "source", "target")


@dataclass(frozen=True, slots=True)
class OverlayMount:
    """A host folder seen at ``target``, whose changes go to ``upper`` instead (Podman only)."""

    source: str
    target: str
    upper: str
    work: str

    def __post_init__(self) -> None:
        _check_paths(self, "source", "target", "upper", "work")
        for name in ("source", "upper", "work"):
            if set(getattr(self, name)) & set(",\\") or ":" in self.upper + self.work:
                raise ConfigError(
                    f"an overlay's {name} cannot hold one of , : \\ — {getattr(self, name)!r}",
                    kind=Kind.BAD_PATH,
                    remedy="mount it under a plainer name, for instance through a link",
                    field="mounts",
                )


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume of the engine's, by name; made if there is none."""

    volume: str
    target: str
    read_only: bool = False

    def __post_init__(self) -> None:
        _check_paths(self, "target")
        check_name(self.volume, "volume")


Mount = BindMount | OverlayMount | VolumeMount


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container to be made.

    - ``command``, ``entrypoint``: as the image says where ``None``.
    - ``env`` is added to the image's; ``labels`` to podbot's own.
    - ``runtime``: ``runc``, ``crun``, ``runsc``, …; the engine's default where ``None``.
    - ``stdin``: keep the main process's standard input open, for `attach`. ``tty``: a terminal.
    - ``logs``: keep what the main process prints, for `logs`.
    - ``auto_remove``: the engine removes it when its main process has ended, whoever ended it.
    - ``killed_at_once``: stopping it kills it, for a main process that no other signal ends.
    """

    image: str
    command: tuple[str, ...] | None = None
    profile: Profile = TOOLS
    entrypoint: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=frozen_dict)
    labels: Mapping[str, str] = field(default_factory=frozen_dict)
    mounts: tuple[Mount, ...] = ()
    name: str | None = None
    workdir: str | None = None
    hostname: str | None = None
    runtime: str | None = None
    stdin: bool = False
    tty: bool = False
    logs: bool = True
    auto_remove: bool = False
    killed_at_once: bool = False

    def __post_init__(self) -> None:
        given: object = self.image  # callers need not be typed
        if given is None or (isinstance(given, str) and not given.strip()):
            raise missing("image", "name an image, or make one with `podbot image build`")
        if not isinstance(given, str):
            raise ConfigError(
                f"the image of a container is {given!r:.80}, and not its name",
                kind=Kind.INVALID,
                remedy="pass its name as text",
                field="image",
            )
        check_words("image", (self.image,))
        check_words("command", self.command or ())
        check_words("entrypoint", self.entrypoint or ())
        check_environment(self.env)
        if self.name is not None:
            check_name(self.name, "container")


def missing(name: str, remedy: str) -> ConfigError:
    """The error for a setting that must be given."""
    return ConfigError(f"no {name} is set", kind=Kind.MISSING_REQUIRED, remedy=remedy, field=name)


def check_name(name: str, what: str) -> None:
    """Refuse a name no engine would take."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a {what}",
            kind=Kind.INVALID,
            remedy="use letters, digits, '_', '.' and '-', beginning with a letter or digit",
            field="name",
        )


def check_words(field_name: str, words: tuple[str, ...]) -> None:
    """Refuse what cannot be an argument."""
    if any("\0" in word for word in words):
        raise ConfigError(
            f"{field_name} cannot be {words!r}",
            kind=Kind.INVALID,
            remedy="give a tuple of strings without NUL",
            field=field_name,
        )


def check_environment(env: Mapping[str, str]) -> None:
    """Refuse what cannot be a variable. Values are not shown: they may be secret."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ConfigError(
                f"environment variable {name!r} cannot be set",
                kind=Kind.INVALID,
                remedy="names are non-empty and without '=', neither part holds a NUL",
                field="env",
            )


def _check_paths(mount: object, *names: str) -> None:
    for name in names:
        path = getattr(mount, name)
        if not path.startswith("/") or "\0" in path or "\n" in path:
            raise ConfigError(
                f"a mount's {name} cannot be {path!r}",
                kind=Kind.BAD_PATH,
                remedy="give an absolute path",
                field="mounts",
            )
