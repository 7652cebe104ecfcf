"""Versions of engines and runtimes that contained processes are known to break out of.

By name, so that people can look them up; as warnings and never as refusals, because distributions
mend old versions without changing the number. Only flaws that a container podbot makes, a build or
a copy could run into; not denial of service, and not what needs a feature podbot never uses.
"""

from __future__ import annotations

import re

from podbot.engine.facts import About
from podbot.frozen import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KnownEscape:
    """A flaw of a component, and the releases that mended it, one for each line that was mended.

    A version is affected if it is older than the oldest of them, or in a mended line but older
    than its release.
    """

    component: str
    name: str
    what: str
    fixed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EscapeWarning:
    """A component whose version says that it has a known flaw."""

    escape: KnownEscape
    version: str

    def __str__(self) -> str:
        escape = self.escape
        return (
            f"{escape.component} {self.version} may have {escape.name}: {escape.what}"
            f" (mended in {', '.join(escape.fixed)}; your distribution may have mended it without"
            " a new number)"
        )


KNOWN = (
    KnownEscape(
        "runc", "CVE-2019-5736", "a container overwrites the runtime on the host", ("1.0.0-rc7",)
    ),
    KnownEscape(
        "runc", "CVE-2021-30465", "links raced during mounts show the host's files", ("1.0.0-rc95",)
    ),
    KnownEscape(
        "runc",
        "CVE-2023-27561",
        "a /proc replaced through volumes weakens the confinement",
        ("1.1.5",),
    ),
    KnownEscape(
        "runc",
        "CVE-2024-21626",
        "a descriptor of the host's leaks into containers (Leaky Vessels)",
        ("1.1.12",),
    ),
    KnownEscape(
        "runc",
        "CVE-2024-45310",
        "a volume raced with links makes files on the host",
        ("1.1.14", "1.2.0-rc3"),
    ),
    KnownEscape(
        "runc",
        "CVE-2025-31133",
        "masked paths are swapped, so that the host's /proc can be written",
        ("1.2.8", "1.3.3", "1.4.0-rc3"),
    ),
    KnownEscape(
        "runc",
        "CVE-2025-52565",
        "the console is swapped, so that the host's /proc can be written",
        ("1.2.8", "1.3.3", "1.4.0-rc3"),
    ),
    KnownEscape(
        "runc",
        "CVE-2025-52881",
        "writes to /proc are led astray, past the host's confinement",
        ("1.2.8", "1.3.3", "1.4.0-rc3"),
    ),
    KnownEscape(
        "crun", "CVE-2025-24965", "an image's links lead the krun handler to the host", ("1.20",)
    ),
    KnownEscape(
        "podman",
        "CVE-2019-10152",
        "links in a container lead a copy to the host's files",
        ("1.4.0",),
    ),
    KnownEscape(
        "podman",
        "CVE-2024-1753",
        "a build mounts the host's root and writes to it",
        ("4.9.4", "5.0.1"),
    ),
    KnownEscape(
        "podman",
        "CVE-2024-9407",
        "a build's mounts reach the host's files",
        ("5.2.4",),
    ),
    KnownEscape(
        "podman",
        "CVE-2024-9675",
        "a build's cache mounts reach the host's files",
        ("5.2.5",),
    ),
    KnownEscape(
        "podman",
        "CVE-2026-55686",
        "an image's working folder makes folders on the host",
        ("5.7.1",),
    ),
    KnownEscape("docker", "CVE-2018-15664", "a raced copy reaches the host's files", ("18.09.8",)),
    KnownEscape(
        "docker",
        "CVE-2019-14271",
        "a copy from a container runs its code on the host",
        ("19.03.1",),
    ),
    KnownEscape(
        "docker",
        "CVE-2026-41568",
        "a raced copy makes files on the host",
        ("29.5.1",),
    ),
    KnownEscape(
        "docker",
        "CVE-2026-42306",
        "a raced copy mounts over the host's files",
        ("29.5.1",),
    ),
    KnownEscape(
        "containerd",
        "CVE-2020-15257",
        "a container on the host's network commands the shim",
        ("1.3.9", "1.4.3"),
    ),
    KnownEscape(
        "containerd",
        "CVE-2022-23648",
        "an image's volumes show the host's files",
        ("1.4.13", "1.5.10", "1.6.1"),
    ),
)


def known_escapes(about: About) -> tuple[EscapeWarning, ...]:
    """The known flaws that an engine's versions speak of."""
    return tuple(
        EscapeWarning(escape, component.version)
        for component in about.components
        for escape in KNOWN
        if escape.component == component.name and is_affected(component.version, escape.fixed)
    )


def is_affected(version: str, fixed: tuple[str, ...]) -> bool:
    """Whether a version is older than what mended it in its line, or than every mended line."""
    found = _ordered(version)
    if found is None:
        return False  # nothing is known of a version that cannot be read
    releases = sorted(each for each in map(_ordered, fixed) if each is not None)
    same_line = [release for release in releases if release[:2] == found[:2]]
    return found < (same_line[-1] if same_line else releases[0])


def _ordered(version: str) -> Version | None:
    """A version so that they compare: three numbers, then that of the release candidate."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:-rc\.?(\d+))?", version)
    if match is None:
        return None
    major, minor, patch, candidate = match.groups()
    # A release comes after all of its candidates.
    return int(major), int(minor), int(patch or 0), int(candidate) if candidate else 10**6
