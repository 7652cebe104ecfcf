"""Finding an engine and connecting to it.

`connect` checks a socket at once and leaves a network alone until the first call;
`connect_and_verify` also asks whether an engine answers. With nothing named there is a search, and
if nothing is found but Podman is installed, podbot starts a service of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from podbot.engine.engine import Engine
from podbot.engine.finding import candidates, endpoints
from podbot.engine.finding.candidates import PLAIN_TCP, Candidate
from podbot.engine.finding.endpoints import Endpoint
from podbot.engine.http.client import Client, Dialer
from podbot.engine.http.dialing import SocketDialer, TcpDialer, peer_uid
from podbot.errors import ConfigError, ContainerError, Kind, PodbotError
from podbot.frozen import dataclass

OWN_SERVICE = "podbot's own Podman service"


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to connect.

    - ``identity``: the key file of an ssh endpoint.
    - ``plain_tcp``: yes to a connection over a network that anyone on the way can read and change.
    - ``own_service``: whether podbot may start a Podman service of its own.
    - ``environment``: the variables that count; those of this process if ``None``.
    """

    identity: str | None = None
    plain_tcp: bool = False
    own_service: bool = True
    environment: Mapping[str, str] | None = None


def connect(
    endpoint: str | Endpoint | None = None, options: ConnectOptions | None = None
) -> Engine:
    """Connect to the engine at ``endpoint``, else to the one a variable names, else search.

    Kinds of `ContainerError`: ``socket_not_found``, ``permission_denied``, ``connection_failed``,
    ``plain_tcp_refused``, and ``no_engine`` when a search found none. An endpoint that cannot be
    meant is a `ConfigError`.
    """
    options = options or ConnectOptions()
    environment = os.environ if options.environment is None else options.environment
    if endpoint is not None:
        if isinstance(endpoint, str):
            endpoint = endpoints.parse(endpoint, options.identity)
        return _open(Candidate(endpoint, "named by the caller"), options, environment)
    candidate = candidates.named(environment)
    if candidate is not None:
        return _open(candidate, options, environment)
    return _search(options, environment)


def connect_and_verify(
    endpoint: str | Endpoint | None = None, options: ConnectOptions | None = None
) -> Engine:
    """Connect, and see that an engine answers.

    Kinds besides those of `connect`: ``health_check_failed``.
    """
    engine = connect(endpoint, options)
    try:
        engine.ping()
    except BaseException:
        engine.close()
        raise
    return engine


def _open(candidate: Candidate, options: ConnectOptions, environment: Mapping[str, str]) -> Engine:
    endpoint = candidate.endpoint
    if endpoint.scheme == "unix":
        return _open_socket(SocketDialer(endpoint.path), candidate)
    client = Client(_remote_dialer(endpoint, options, environment), str(endpoint))
    return Engine(client, endpoint, candidate.found_by)


def _open_socket(dialer: Dialer, candidate: Candidate) -> Engine:
    """Connect now: a socket that is missing or forbidden should be told at once."""
    try:
        sock = dialer.dial(None)
    except BaseException:
        dialer.close()
        raise
    client = Client(dialer, str(candidate.endpoint))
    uid = peer_uid(sock)
    client.adopt(sock)
    return Engine(client, candidate.endpoint, candidate.found_by, uid)


def _remote_dialer(
    endpoint: Endpoint, options: ConnectOptions, environment: Mapping[str, str]
) -> Dialer:
    if endpoint.scheme == "npipe":
        raise ContainerError(
            f"{endpoint} is a Windows named pipe, which this system does not have",
            kind=Kind.UNSUPPORTED,
            remedy="name a socket (unix:///path) or a port (tcp://host:port)",
            subject=str(endpoint),
        )
    if endpoint.scheme == "ssh":
        from podbot.engine.http.tunnel import TunnelDialer

        return TunnelDialer(endpoint, environment)
    from podbot.engine.http import tls

    if tls.wanted(endpoint, environment):
        return TcpDialer(endpoint, tls.context(environment))
    if not (endpoint.is_loopback or options.plain_tcp or _says_yes(environment)):
        raise ContainerError(
            f"{endpoint} is not encrypted: anyone on the way could command the engine",
            kind=Kind.PLAIN_TCP_REFUSED,
            remedy=f"use https:// or ssh://, or agree to it with {PLAIN_TCP}=yes",
            subject=str(endpoint),
        )
    return TcpDialer(endpoint, None)


def _says_yes(environment: Mapping[str, str]) -> bool:
    said = environment.get(PLAIN_TCP, "").strip().lower()
    if said not in ("", "0", "no", "false", "1", "yes", "true"):
        raise ConfigError(
            f"{PLAIN_TCP}={said} is neither yes nor no",
            kind=Kind.INVALID,
            remedy="write yes or no",
            field=PLAIN_TCP,
        )
    return said in ("1", "yes", "true")


def _search(options: ConnectOptions, environment: Mapping[str, str]) -> Engine:
    """The first candidate that answers; tells how each fared if none does."""
    fared: list[str] = []
    for candidate in candidates.searched(environment):
        try:
            engine = _open(candidate, options, environment)
        except PodbotError as error:
            fared.append(f"{candidate.found_by}: {error.message}")
            continue
        try:
            engine.ping()
        except PodbotError as error:
            engine.close()
            fared.append(f"{candidate.found_by}: {error.message}")
            continue
        return engine
    podman = candidates.find_podman(environment)
    if not options.own_service:
        fared.append(f"{OWN_SERVICE}: not wanted")
    elif podman is None:
        fared.append(f"{OWN_SERVICE}: podman is not installed")
    else:
        try:
            return _own(podman, environment)
        except PodbotError as error:
            fared.append(f"{OWN_SERVICE}: {error.message}")
    raise ContainerError(
        "no container engine was found\n" + "\n".join(f"  - {line}" for line in fared),
        kind=Kind.NO_ENGINE,
        remedy="install Podman (Debian and Ubuntu: sudo apt-get install podman), or name an engine"
        f" with {candidates.SOCKET}",
    )


def connect_with_runtime(runtime: str) -> Engine:
    """podbot's own Podman service, with another runtime than Podman's default.

    Podman's API takes no runtime for a container: it is a matter of the service. Kind
    ``unsupported`` where Podman is not installed.
    """
    podman = candidates.find_podman(os.environ)
    if podman is None:
        raise ContainerError(
            f"the runtime {runtime} cannot be used: Podman is not installed on this machine",
            kind=Kind.UNSUPPORTED,
            remedy="install Podman, or make it the default of the engine that is used",
            subject=runtime,
        )
    return _own(podman, os.environ, ("--runtime", runtime))


def _own(podman: str, environment: Mapping[str, str], options: tuple[str, ...] = ()) -> Engine:
    from podbot.engine.finding._service import ServiceDialer

    dialer = ServiceDialer(podman, environment, options)
    path = dialer.service.path
    return _open_socket(dialer, Candidate(Endpoint(path, "unix", path=path), OWN_SERVICE))
