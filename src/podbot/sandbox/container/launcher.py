"""The container backend's launcher: what `backends.find` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from podbot.sandbox.container._session import ContainerSession
from podbot.sandbox.container.settings import BACKEND, ContainerOptions, Settings, Target
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.limits import Limits
from podbot.sandbox.policy import Policy

if TYPE_CHECKING:
    from podbot.sandbox.container.async_sandbox import AsyncContainerSandbox
    from podbot.sandbox.container.sandbox import ContainerSandbox


class ContainerLauncher(Launcher):
    """Starts a container sandbox; see `Settings` for the options.

    Launching again, after the container was stopped or lost, goes on over the same files.
    """

    name = BACKEND
    options = ("target", *ContainerOptions.__annotations__)
    """What `open` takes for this backend, for whoever misspells one."""

    def __init__(self, target: Target | None = None, **options: Unpack[ContainerOptions]):
        self.settings = Settings.of(target, options)
        self.policy: Policy = self.settings.policy
        self.limits: Limits = self.settings.limits
        self.session = ContainerSession(self.settings)

    def launch(self) -> Launched:
        """Start the container, and the guest in it."""
        return self.session.start()

    def sandbox(self) -> ContainerSandbox:
        """A sandbox of this launcher."""
        from podbot.sandbox.container.sandbox import ContainerSandbox

        return ContainerSandbox.of(self)

    def async_sandbox(self) -> AsyncContainerSandbox:
        """Its async twin, not started yet."""
        from podbot.sandbox.container.async_sandbox import AsyncContainerSandbox

        return AsyncContainerSandbox.of(self)
