"""What an engine is: cheap facts at once, the rest when asked for.

`Facts` come from a ping and the socket itself, because the calls that tell everything take half a
second on some hosts (Podman asks the package database). `About` is that everything, for `doctor`,
for choosing a runtime and for warnings.
"""

from __future__ import annotations

import os
import re

from podbot.engine.http import replies
from podbot.engine.http.replies import Fields
from podbot.frozen import dataclass

_VERSION = re.compile(r"(\d+(?:\.\d+)+)((?:-rc[.\d]+)?)")


@dataclass(frozen=True, slots=True)
class Facts:
    """What must be known to make a container.

    ``local``: it sees the files we see. ``limits_enforced``: it can hold containers to their cpu,
    memory and pids limits at all (rootless engines on cgroup v1 cannot).
    """

    is_podman: bool
    version: str
    api_version: str
    rootless: bool
    cgroup_version: int
    local: bool

    @property
    def name(self) -> str:
        """The engine's name."""
        return "podman" if self.is_podman else "docker"

    @property
    def limits_enforced(self) -> bool:
        """Whether cpu, memory and pids limits can hold."""
        return not (self.rootless and self.cgroup_version == 1)


@dataclass(frozen=True, slots=True)
class Component:
    """A part of an engine, with its version."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class About:
    """All an engine says of itself that podbot has a use for."""

    facts: Facts
    components: tuple[Component, ...]
    runtimes: tuple[str, ...]
    default_runtime: str
    cgroup_driver: str
    operating_system: str
    kernel: str
    architecture: str
    security: tuple[str, ...]
    storage: str
    memory_limit: bool
    cpu_limit: bool
    pids_limit: bool
    warnings: tuple[str, ...]


def read_about(facts: Facts, version: Fields, info: Fields) -> About:
    """From the replies to ``/version`` and ``/info``."""
    return About(
        facts=facts,
        components=tuple(_components(version)),
        runtimes=tuple(_runtimes(facts, replies.below(info, "Runtimes"))),
        default_runtime=replies.text(info, "DefaultRuntime"),
        cgroup_driver=replies.text(info, "CgroupDriver"),
        operating_system=replies.text(info, "OperatingSystem"),
        kernel=replies.text(info, "KernelVersion"),
        architecture=replies.text(info, "Architecture"),
        security=replies.texts(info, "SecurityOptions"),
        storage=replies.text(info, "Driver"),
        memory_limit=replies.flag(info, "MemoryLimit"),
        cpu_limit=replies.flag(info, "CpuCfsQuota"),
        pids_limit=replies.flag(info, "PidsLimit"),
        warnings=tuple(replies.visible(line) for line in replies.texts(info, "Warnings")),
    )


def _runtimes(facts: Facts, listed: Fields) -> list[str]:
    """The runtimes an engine knows, less those that it knows of but that are not installed."""
    found = []
    for name in sorted(listed):
        path = replies.text(replies.below(listed, name), "path")
        if not (facts.local and os.path.isabs(path)) or os.path.exists(path):
            found.append(replies.visible(name))
    return found


def is_rootless(info: Fields) -> bool:
    """Whether ``/info`` is of an engine without root."""
    if replies.flag(info, "Rootless"):
        return True
    return any("name=rootless" in option for option in replies.texts(info, "SecurityOptions"))


def local_cgroup_version() -> int:
    """Which control groups this machine has. The hybrid layout counts as 1."""
    return 2 if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else 1


def plain_version(words: str) -> str:
    """The first thing in a text that looks like a version; empty if nothing does."""
    found = _VERSION.search(words)
    return found[0] if found else ""


def _components(version: Fields) -> list[Component]:
    found = []
    for part in replies.objects(version.get("Components"), "Components"):
        name = replies.text(part, "Name")
        inner = re.fullmatch(r"OCI Runtime \((.+)\)", name)
        if inner:
            name = inner[1]
        name = {"Podman Engine": "podman", "Engine": "docker"}.get(name, name).lower()
        found.append(Component(replies.visible(name), plain_version(replies.text(part, "Version"))))
    return found
