"""The engines of the end-to-end tests come up, run a container, and leave nothing behind."""

from __future__ import annotations

import pytest
from services import Service

pytestmark = [pytest.mark.e2e, pytest.mark.podman]


@pytest.mark.engines("rootful", "rootless", "docker", "runsc")
def test_an_engine_runs_a_container_and_removes_it(service: Service) -> None:
    label = f"podbot.e2e={service.run}"
    command = ("run", "--rm", "--network=none", f"--label={label}", service.image, "python3", "-c")

    told = service.cli(*command, "import sys; print(sys.version_info >= (3, 10))")

    assert told.strip() == "True"
    assert service.containers(f"label={label}") == []
