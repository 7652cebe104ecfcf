"""What all tests share: layers of their own, and no silent skipping in continuous integration.

With ``PODBOT_CI=1`` a skipped test fails the run unless the list below says that this machine
cannot do better. A reason is allowed together with the fact that excuses it, so that a root run
cannot hide behind "only root".
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about podbot. Whoever works
# on podbot meets new examples in every run; what a change must pass is the same each time.
settings.register_profile(
    "podbot",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("PODBOT_CI")),
)
settings.load_profile("podbot")

# A skip's reason, and when it is right to skip for it. The match is handed to the condition.
ALLOWED_SKIPS: tuple[tuple[str, Callable[[re.Match[str]], bool]], ...] = (
    (r"only root can .+", lambda _: os.geteuid() != 0),
    (r"file modes hide these from other users", lambda _: os.geteuid() != 0),
    (r"(/\S*) is not (writable|this user's to write)", lambda m: not os.access(m[1], os.W_OK)),
    (r"only x86_64 has .+", lambda _: platform.machine() != "x86_64"),
    (
        r"(\S+) is not installed",
        lambda m: shutil.which(m[1]) is None and not os.path.exists(m[1]),
    ),
    (r"could not import '(\w+)'.*", lambda m: importlib.util.find_spec(m[1]) is None),
    (r"not promised here: needs Landlock 6", lambda _: _landlock_abi() < 6),
    (r"limit\.(cpu|pids) is not enforced here: .+", lambda m: not _has_control_group(m[1])),
    # Found out by the engine's own command, without podbot: tests/e2e/services.py. Never Podman.
    (r"(docker|runsc) runs no container on this machine: .+", lambda m: _engine_refused(m[1])),
    # A virtual environment below a folder that is private inside: the copy CI tests as a user.
    (
        r"the interpreter lies where a sandbox cannot see it",
        lambda _: sys.executable.startswith(("/tmp/", "/var/tmp/")),
    ),
)

_unexpected: dict[str, str] = {}


def _landlock_abi() -> int:
    from podbot.sandbox.overlay import kernel

    return kernel.landlock_abi()


def _has_control_group(controller: str) -> bool:
    from podbot.sandbox.overlay import cgroups

    return controller in cgroups.hierarchy().parents


def _engine_refused(kind: str) -> bool:
    return kind in getattr(sys.modules.get("services"), "refused", {})


@pytest.fixture(scope="session", autouse=True)
def layers_root() -> Iterator[Path]:
    """Layers of tests never mix with the user's, nor with those of another xdist worker."""
    from podbot.sandbox.overlay import layers

    folder = Path(tempfile.mkdtemp(prefix="podbot-test-", dir="/var/tmp")).resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(layers.ROOT_VARIABLE, str(folder))
        yield folder
    for _ in range(500):
        with suppress(OSError):  # a zygote may still be removing what was discarded
            layers.remove(folder)
        if not folder.exists():
            return
        time.sleep(0.02)


@pytest.fixture(scope="session", autouse=True)
def state_root() -> Iterator[Path]:
    """Records and journals of tests never mix with the user's."""
    from podbot.config import places

    with (
        tempfile.TemporaryDirectory(
            prefix="podbot-state-", dir="/var/tmp", ignore_cleanup_errors=True
        ) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(places.STATE_VARIABLE, folder)
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Workspaces of tests never mix with the user's, and a sweep of theirs never sees those."""
    from podbot.config import variables

    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variables.CACHE.name, str(folder))
        yield folder


def is_allowed(reason: str) -> bool:
    """Whether this machine may skip for this reason."""
    for pattern, excused in ALLOWED_SKIPS:
        match = re.fullmatch(pattern, reason, re.DOTALL)
        if match is not None and excused(match):
            return True
    return False


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not is_allowed(reason):
        _unexpected[report.nodeid] = reason


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    strict = os.environ.get("PODBOT_CI") == "1" and not hasattr(session.config, "workerinput")
    if strict and _unexpected and exitstatus in (pytest.ExitCode.OK, 5):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("PODBOT_CI") == "1" and _unexpected:
        terminalreporter.section("skipped, but not on the list in tests/conftest.py", red=True)
        for nodeid, reason in sorted(_unexpected.items()):
            terminalreporter.line(f"{nodeid}: {reason}")
