"""What a person asks for when starting a server: which tools, where, and what they may see.

All of it is fixed before the first message is read. Nothing a client or a model says changes it. A
backend that does not support an option refuses it instead of leaving it out.
"""

from __future__ import annotations

from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass, replace
from podbot.runs.request import DEFAULT_BACKEND, LaunchRequest
from podbot.sandbox import backends

_OF_A_COMMAND = ("continue_in", "discard", "timeout", "limits")
"""What a server does not keep to."""


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """Which tools to serve, and where they work.

    - ``launch``: where they work. One target at most. ``overlay``, ``container``: its changes are
      kept for review (default the current folder). ``memory``: it is copied; without one they begin
      empty. ``local``: it is changed at once; without one they have a temporary folder. A backend
      of another package is given it if there is one. Its command is what the record of the changes
      says.
    - ``call_seconds``: the most that one call may take. ``data``: results are sent as data too.
    """

    launch: LaunchRequest = LaunchRequest(backend=DEFAULT_BACKEND)
    call_seconds: float | None = None
    data: bool = False

    def __post_init__(self) -> None:
        launch = self.launch
        if launch.backend is None:  # said here, so that it is checked what that one can keep to
            launch = replace(launch, backend=DEFAULT_BACKEND)
            object.__setattr__(self, "launch", launch)
        known = (*backends.NAMES, *backends.others())
        if self.backend not in known:
            raise ConfigError(
                f"there is no backend {self.backend!r} for tools",
                kind=Kind.UNKNOWN_BACKEND,
                remedy=f"use one of: {', '.join(known)}",
                field="backend",
            )
        if len(launch.targets) > 1:
            raise ConfigError(
                f"the tools work on one folder, and {len(launch.targets)} were named",
                kind=Kind.UNSUPPORTED,
                remedy="name the folder they all lie in",
                field="targets",
            )
        for option in _OF_A_COMMAND:
            if getattr(launch, option):
                raise ConfigError(
                    f"a server does not support {option}",
                    kind=Kind.UNSUPPORTED,
                    remedy="leave it out",
                    field=option,
                )

    @property
    def backend(self) -> str:
        """Where the tools work."""
        return self.launch.backend or DEFAULT_BACKEND

    @property
    def reaches_out(self) -> bool:
        """Whether commands can get beyond the sandbox, to a network above all, for all we know."""
        if self.backend not in backends.NAMES or not self.launch.isolates:
            return True
        return self.launch.policy().network.reaches_out
