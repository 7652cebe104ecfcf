"""What the end-to-end tests share: engines that are started when the first test asks for one.

A test that takes ``service`` runs once for each engine it can run on: rootful Podman when the
tests run as root, rootless Podman when they run as an ordinary user (`make test-e2e` does both).
``@pytest.mark.engines("rootful", "rootless", "docker", "runsc")`` names others or fewer. A test
whose engines are all served by the other of the two runs is left out of this one, not skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import services
from services import Service

USUAL = ("rootful", "rootless")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "engines(kind, ...): which engines a test with `service` runs on"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "service" in metafunc.fixturenames:
        kinds = _kinds(metafunc.definition)
        metafunc.parametrize("service", kinds or [None], indirect=True, ids=kinds or ["elsewhere"])


def _kinds(item: pytest.Item) -> list[str]:
    mark = item.get_closest_marker("engines")
    wanted = USUAL if mark is None else mark.args
    unknown = set(wanted) - set(services.KINDS)
    if unknown:
        raise pytest.UsageError(f"{item.nodeid}: no such engines: {', '.join(sorted(unknown))}")
    return [kind for kind in services.served() if kind in wanted]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has no engine here; order by engine, so that each is started once."""
    elsewhere = [item for item in items if _kind(item) == "elsewhere"]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if _kind(item) != "elsewhere"]


def _kind(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    if call is None or "service" not in call.params:
        return None
    return call.params["service"] or "elsewhere"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.line(f"what the engines said: {services.logs()}")


class Services:
    """The engines that were asked for so far."""

    def __init__(self, stack: ExitStack):
        self._stack = stack
        self._started: dict[str, Service] = {}

    def get(self, kind: str) -> Service:
        """The engine of this kind."""
        if kind not in self._started:
            self._started[kind] = self._stack.enter_context(services.start(kind))
        return self._started[kind]


@pytest.fixture(scope="session")
def all_services() -> Iterator[Services]:
    """Engines by kind, for fixtures of a wider scope than a test; they end with the run."""
    with ExitStack() as stack:
        yield Services(stack)


@pytest.fixture
def service(
    request: pytest.FixtureRequest, all_services: Services, monkeypatch: pytest.MonkeyPatch
) -> Service:
    """An engine; podbot, and `podman` as a command, use it and no other during the test."""
    found = all_services.get(request.param)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture(scope="session")
def agent_image(all_services: Services) -> str:
    """The large image, with Codex, built by the public command; for rootful Podman."""
    tag = "localhost/podbot-e2e-agent:latest"
    command = [sys.executable, "-m", "podbot", "image", "build", "--with=codex", f"--tag={tag}"]
    environment = dict(all_services.get("rootful").environment)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return tag
