"""An engine that is connected: what it is, and its containers, images and execs.

`connect` makes one. It holds no connection that matters: closing it, or losing it, ends nothing
that runs in containers. It may be used by several threads, and in a fork.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from podbot.engine import facts as reading
from podbot.engine.facts import About, Facts
from podbot.engine.finding.endpoints import Endpoint
from podbot.engine.http import replies
from podbot.engine.http.client import Answer, Call, Client, Purpose
from podbot.errors import ContainerError, Kind

if TYPE_CHECKING:
    from podbot.engine._escapes import EscapeWarning
    from podbot.engine.containers import Containers
    from podbot.engine.execs import Execs
    from podbot.engine.image.images import Images

PING_SECONDS = 10.0
ABOUT_SECONDS = 60.0

NEWEST_API = (1, 44)
"""The newest Docker API that the calls here were written for. Podman takes any."""
LIBPOD_API = "v4.0.0"
OLDEST_PODMAN = 4

NOT_AN_ENGINE = "check that a Docker or Podman engine answers at that endpoint"


class Engine:
    """A container engine."""

    def __init__(self, client: Client, endpoint: Endpoint, found_by: str, uid: int | None = None):
        """``found_by`` says where the endpoint came from; ``uid`` whose engine it is, if known."""
        self.client = client
        self.endpoint = endpoint
        self.found_by = found_by
        self._uid = uid
        self._facts: Facts | None = None
        self._about: About | None = None
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, client.close)

    @property
    def containers(self) -> Containers:
        """Its containers."""
        from podbot.engine.containers import Containers

        return Containers(self)

    @property
    def images(self) -> Images:
        """Its images."""
        from podbot.engine.image.images import Images

        return Images(self)

    @property
    def execs(self) -> Execs:
        """Commands in its containers."""
        from podbot.engine.execs import Execs

        return Execs(self)

    @property
    def facts(self) -> Facts:
        """What must be known of it; asked for once. Kinds as for `ping`."""
        with self._lock:
            if self._facts is None:
                self._facts = self._find_facts()
            return self._facts

    def about(self) -> About:
        """All it says of itself; asked for once, and slow on some hosts."""
        facts = self.facts
        with self._lock:
            if self._about is None:
                version = replies.fields(self._get(self.common_of(facts, "/version")).json())
                info = replies.fields(self._get(self.common_of(facts, "/info")).json())
                self._about = reading.read_about(facts, version, info)
            return self._about

    def ping(self) -> None:
        """Whether it answers. Kinds ``connection_failed`` and ``health_check_failed``."""
        self._ping()

    def warnings(self) -> tuple[EscapeWarning, ...]:
        """Known ways out of its containers that its versions speak of; slow as `about`."""
        from podbot.engine._escapes import known_escapes

        return known_escapes(self.about())

    def common(self, path: str) -> str:
        """The path of a call that Docker and Podman share."""
        return self.common_of(self.facts, path)

    def libpod(self, path: str) -> str:
        """The path of a call that only Podman has."""
        return f"/{LIBPOD_API}/libpod{path}"

    def close(self) -> None:
        """Close its connections, and end a service or tunnel that was started for it."""
        self._end()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine({self.endpoint}, {self.found_by})"

    @staticmethod
    def common_of(facts: Facts, path: str) -> str:
        """Likewise, with facts at hand."""
        return f"/v{facts.api_version}{path}"

    def _ping(self) -> Answer:
        purpose = Purpose(
            "ask how the engine is",
            Kind.HEALTH_CHECK_FAILED,
            str(self.endpoint),
            remedies={Kind.HEALTH_CHECK_FAILED: NOT_AN_ENGINE},
        )
        try:
            answer = self.client.call(Call("GET", "/_ping", purpose, seconds=PING_SECONDS))
        except ContainerError as error:
            if error.kind == Kind.ENGINE_PROTOCOL or isinstance(error.__cause__, TimeoutError):
                raise self._unhealthy(error.message) from error
            raise
        if answer.status != 200 or _api_version(answer.headers.get("api-version", "")) is None:
            raise self._unhealthy(f"what answers at {self.endpoint} is not a container engine")
        return answer

    def _unhealthy(self, message: str) -> ContainerError:
        return ContainerError(
            message,
            kind=Kind.HEALTH_CHECK_FAILED,
            remedy=NOT_AN_ENGINE,
            subject=str(self.endpoint),
        )

    def _find_facts(self) -> Facts:
        headers = self._ping().headers
        libpod = headers.get("libpod-api-version", "")
        major = libpod.partition(".")[0]
        if major.isdigit() and int(major) < OLDEST_PODMAN:
            raise ContainerError(
                f"Podman {replies.visible(libpod)} at {self.endpoint} is too old",
                kind=Kind.UNSUPPORTED,
                remedy=f"update it to {OLDEST_PODMAN} or newer",
                subject=str(self.endpoint),
            )
        served = _api_version(headers["api-version"])
        version = ".".join(map(str, min(served or NEWEST_API, NEWEST_API)))
        facts = Facts(
            is_podman=bool(libpod),
            version=libpod or reading.plain_version(headers.get("server", "")),
            api_version=version,
            rootless=bool(self._uid),
            cgroup_version=reading.local_cgroup_version(),
            local=self.endpoint.is_local,
        )
        if self._uid is not None:
            return facts
        # Over a network there is no telling without asking.
        info = replies.fields(self._get(self.common_of(facts, "/info")).json())
        return Facts(
            is_podman=facts.is_podman,
            version=facts.version or replies.text(info, "ServerVersion"),
            api_version=version,
            rootless=reading.is_rootless(info),
            cgroup_version=2 if str(info.get("CgroupVersion")) == "2" else 1,
            local=facts.local,
        )

    def _get(self, path: str) -> Answer:
        purpose = Purpose("ask what the engine is", subject=str(self.endpoint))
        return self.client.call(Call("GET", path, purpose, seconds=ABOUT_SECONDS))


def _api_version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    if not (major + minor).isascii() or not major.isdigit() or not minor.isdigit():
        return None
    return (int(major), int(minor))
