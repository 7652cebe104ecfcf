"""Where to look for an engine, in which order.

What was named (an argument, a variable) is the only candidate: whoever named it means it. Only if
nothing was named is there a search, over Podman's own connections and the usual sockets. Nothing
here connects to anything; Podman's list of connections is asked for only if one of its files
mentions any, because asking costs as much as making a container.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping

from podbot.config import variables
from podbot.engine.finding import endpoints
from podbot.engine.finding.endpoints import Endpoint
from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass

SOCKET = variables.ENGINE_SOCKET.name
PLAIN_TCP = variables.ENGINE_PLAIN_TCP.name
CONNECTION = "PODMAN_CONNECTION"

LIST_SECONDS = 15.0
MAX_LIST = 1024 * 1024

# Each with the variable that names the key file of an ssh endpoint, if there is one.
VARIABLES = (
    (SOCKET, None),
    ("PODMAN_BASE_URL", "PODMAN_IDENTITY"),
    (CONNECTION, None),
    ("PODMAN_URL", None),
    ("CONTAINER_HOST", "CONTAINER_SSHKEY"),
    ("PODMAN_HOST", None),
    ("DOCKER_HOST", None),
)
"""The variables that name an engine, the strongest first."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint that may be an engine's, and where it came from."""

    endpoint: Endpoint
    found_by: str


def named(environment: Mapping[str, str]) -> Candidate | None:
    """The candidate that a variable names."""
    for variable, key in VARIABLES:
        text = environment.get(variable, "").strip()
        if not text:
            continue
        if variable == CONNECTION:
            return _by_name(text, environment)
        identity = environment.get(key) if key else None
        return Candidate(endpoints.parse(text, identity), variable)
    return None


def searched(environment: Mapping[str, str]) -> Iterator[Candidate]:
    """The candidates when nothing is named, the best first."""
    if connections_mentioned(environment):
        listed = connections(environment)
        default = [entry for entry in listed if entry.default]
        for entry in (default or listed)[:1]:
            yield Candidate(entry.endpoint, f"podman connection {entry.name}")
    for path, whose in sockets(environment):
        yield Candidate(Endpoint(path, "unix", path=path), f"the {whose} socket")


def sockets(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The usual sockets: the user's first, then the system's."""
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    home = environment.get("HOME", "")
    yield f"{runtime}/podman/podman.sock", "user's Podman"
    yield f"{runtime}/docker.sock", "user's Docker"
    if os.path.isabs(home):
        yield f"{home}/.docker/run/docker.sock", "user's Docker Desktop"
        yield f"{home}/.docker/desktop/docker.sock", "user's Docker Desktop"
    yield "/run/podman/podman.sock", "system's Podman"
    yield "/run/docker.sock", "system's Docker"
    if os.path.realpath("/var/run") != "/run":
        yield "/var/run/docker.sock", "system's Docker"


@dataclass(frozen=True, slots=True)
class Connection:
    """A line of ``podman system connection list``."""

    name: str
    endpoint: Endpoint
    default: bool


def connections(environment: Mapping[str, str]) -> list[Connection]:
    """Podman's connections; none if it cannot be asked."""
    import subprocess

    podman = find_podman(environment)
    if podman is None:
        return []
    try:
        done = subprocess.run(
            [podman, "system", "connection", "list", "--format", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            timeout=LIST_SECONDS,
            check=False,
        )
        listed = json.loads(done.stdout[:MAX_LIST]) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    return list(_read_connections(listed))


def _read_connections(listed: object) -> Iterator[Connection]:
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        name, place, key = entry.get("Name"), entry.get("URI"), entry.get("Identity")
        if not isinstance(name, str) or not isinstance(place, str):
            continue
        # Podman up to 4.2 marks the default by its name alone.
        default = entry.get("Default") is True or name.endswith("*")
        identity = key if isinstance(key, str) and key else None
        try:
            endpoint = endpoints.parse(place, identity)
        except ConfigError:
            continue  # an odd entry must not hide the others
        yield Connection(name.removesuffix("*"), endpoint, default)


def _by_name(name: str, environment: Mapping[str, str]) -> Candidate:
    listed = connections(environment)
    for entry in listed:
        if entry.name == name:
            return Candidate(entry.endpoint, f"{CONNECTION}={name}")
    known = ", ".join(entry.name for entry in listed) or "none"
    raise ConfigError(
        f"{CONNECTION}={name}: Podman has no such connection (it has: {known})",
        kind=Kind.INVALID,
        remedy="see `podman system connection list`",
        field=CONNECTION,
    )


def connections_mentioned(environment: Mapping[str, str]) -> bool:
    """Whether any file of Podman's may hold connections."""
    home = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '')}/.config"
    own = environment.get("PODMAN_CONNECTIONS_CONF") or f"{home}/containers/podman-connections.json"
    if os.path.exists(own):
        return True
    files = [
        environment.get("CONTAINERS_CONF", ""),
        environment.get("CONTAINERS_CONF_OVERRIDE", ""),
    ]
    for folder in ("/usr/share/containers", "/etc/containers", f"{home}/containers"):
        files.append(f"{folder}/containers.conf")
        files += _below(f"{folder}/containers.conf.d")
    return any(_mentions(path) for path in files if path)


def _below(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))[:100]]
    except OSError:
        return []


def _mentions(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_LIST)
    except OSError:
        return False
    # Distributions ship the whole file with every line commented out.
    return any(
        b"service_destinations" in line and not line.lstrip().startswith(b"#")
        for line in text.splitlines()
    )


def find_podman(environment: Mapping[str, str]) -> str | None:
    """The podman program on the path."""
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "podman")
        if os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None
