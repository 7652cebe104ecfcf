"""What the end-to-end tests share: engines that are started when the first test asks for one.

A test that takes ``service`` runs once for each engine it can run on: rootful Podman when the
tests run as root, rootless Podman when they run as an ordinary user (`make test-e2e` does both).
``@pytest.mark.engines("rootful", "rootless", "docker", "runsc")`` names others or fewer. A test
whose engines are all served by the other of the two runs is left out of this one, not skipped.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import services
from screen import PODBOT
from services import Service

from podbot import engine
from podbot.engine import Engine

AGENT_IMAGE = "localhost/podbot-e2e-agent:latest"
BUILD = [*PODBOT, "image", "build", "--with=codex", f"--tag={AGENT_IMAGE}"]
BUILD_SECONDS = 1500.0
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
    """Leave out what has no engine here; what needs the large image comes last."""
    elsewhere = [item for item in items if _kind(item) == "elsewhere"]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
    left = [item for item in items if _kind(item) != "elsewhere"]
    items[:] = sorted(left, key=_needs_agent_image)


def _needs_agent_image(item: pytest.Item) -> bool:
    return "agent_image" in getattr(item, "fixturenames", ())


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
        """The engine of this kind; skips what needs one that this machine does not run."""
        if kind not in self._started:
            self._started[kind] = self._stack.enter_context(services.start_or_skip(kind))
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


@pytest.fixture(scope="session", autouse=True)
def agent_image_build(
    request: pytest.FixtureRequest, all_services: Services
) -> Iterator[subprocess.Popen[str] | None]:
    """The build of the large image, by the public command, beside the first tests."""
    if not any(map(_needs_agent_image, request.session.items)):
        yield None
        return
    try:
        rootful = all_services.get("rootful")
    except pytest.skip.Exception:  # not here: who wants the image asks again, and skips
        yield None
        return
    with subprocess.Popen(
        BUILD, env=dict(rootful.environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        yield process
        process.terminate()


@pytest.fixture(scope="session")
def agent_image(agent_image_build: subprocess.Popen[str] | None, all_services: Services) -> str:
    """The large image, with Codex; for rootful Podman."""
    environment = dict(all_services.get("rootful").environment)
    assert agent_image_build is not None
    told, _ = agent_image_build.communicate(timeout=BUILD_SECONDS)
    if agent_image_build.returncode:
        # It downloads much, which may fail once; the steps that were done are not done again.
        again = subprocess.run(
            BUILD, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=BUILD_SECONDS,
        )  # fmt: skip
        assert again.returncode == 0, told[-4000:] + again.stdout[-2000:] + again.stderr[-2000:]
    return AGENT_IMAGE


@pytest.fixture
def opened(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine, connected; so are programs that the test starts."""
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    with engine.connect(service.url) as found:
        yield found


@pytest.fixture
def name(service: Service, opened: Engine) -> Iterator[str]:
    """A container that runs."""
    chosen = f"e2e-{uuid.uuid4().hex[:8]}"
    made = opened.containers.create(
        engine.ContainerSpec(service.image, ("sleep", "1000"), name=chosen)
    )
    try:
        opened.containers.start(made.id)
        yield chosen
    finally:
        opened.containers.remove(made.id)
