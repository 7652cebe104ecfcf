"""What all tests share: layers and a seed of their own, the signals that a shell in a terminal
gives, and no silent skipping in continuous integration.

With ``PODBOT_CI=1`` a skipped test fails the run unless the list below says that this machine
cannot do better. A reason is allowed together with the fact that excuses it, so that a root run
cannot hide behind "only root".
"""

from __future__ import annotations

import importlib.util
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import confined
import pytest
import seeds
from hypothesis import settings

settings.load_profile("podbot")

# A skip's reason, and when it is right to skip for it. The match is handed to the condition.
ALLOWED_SKIPS: tuple[tuple[str, Callable[[re.Match[str]], bool]], ...] = (
    (r"only root can .+", lambda _: os.geteuid() != 0),
    (
        r"root has no mount namespace of its own here",
        lambda _: os.environ.get(confined.WITHIN) != confined.SHARED,
    ),
    (r"file modes hide these from other users", lambda _: os.geteuid() != 0),
    (r"(/\S*) is not (writable|this user's to write)", lambda m: not os.access(m[1], os.W_OK)),
    (r"only x86_64 has .+", lambda _: platform.machine() != "x86_64"),
    (
        r"(\S+) is not installed",
        lambda m: shutil.which(m[1]) is None and not os.path.exists(m[1]),
    ),
    (r"this machine has no loop devices: .+", lambda _: _has_no_loop_devices()),
    (r"could not import '(\w+)'.*", lambda m: importlib.util.find_spec(m[1]) is None),
    (r"not promised here: needs Landlock 6", lambda _: _landlock_abi() < 6),
    (r"limit\.(cpu|memory|pids) is not enforced here: .+", lambda m: not _has_control_group(m[1])),
    # Found out by the engine's own command, without podbot: tests/e2e/services.py. Never Podman.
    (r"(docker|runsc) runs no container on this machine: .+", lambda m: _engine_refused(m[1])),
    # A virtual environment below a folder that is private inside: the copy CI tests as a user.
    (
        r"the interpreter lies where a sandbox cannot see it",
        lambda _: sys.executable.startswith(("/tmp/", "/var/tmp/")),
    ),
)

_unexpected: dict[str, str] = {}


def usual_signals() -> None:
    """Be as started at a terminal: the background job of a script has SIGINT ignored, and tests
    that interrupt what they started would wait for ever."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores those
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)


CONFINEMENT = pytest.StashKey[confined.Confinement]()
HARM = pytest.StashKey[list[str]]()

usual_signals()  # now, before pytest-xdist starts its workers, which inherit them


def pytest_configure(config: pytest.Config) -> None:
    # Workers, and what tests start, find it in the environment.
    os.environ[seeds.VARIABLE] = seeds.of_run(config.rootpath)
    if confined.wanted() and not config.option.collectonly:
        given = config.option.basetemp
        config.stash[CONFINEMENT] = confined.enter(config.rootpath, [given] if given else [])
    confined.redirect()


@pytest.hookimpl(optionalhook=True)  # not there without pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: in any moment some test waits for a clock."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_sessionstart(session: pytest.Session) -> None:
    _tell(session.config, f"seed: {_seed()}")
    confinement = session.config.stash.get(CONFINEMENT, None)
    if confinement is not None:
        _tell(session.config, confinement.told)
    elif reason := os.environ.get(confined.UNCONFINED):
        _tell(session.config, f"the tests can write to the whole machine: {reason}")


def _seed() -> str:
    return os.environ[seeds.VARIABLE]


def _tell(config: pytest.Config, line: str) -> None:
    """Say something at the head of the run, which `-q` would leave out of pytest's own."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        reporter.ensure_newline()
        reporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seeds.give(item)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """What a test draws from that wants chance: the same for the same seed of the run."""
    return random.Random(seeds.number(request.node.nodeid))


def _landlock_abi() -> int:
    from podbot import kernel

    return kernel.landlock_abi()


def _has_control_group(controller: str) -> bool:
    from podbot.sandbox.overlay import cgroups

    return controller in cgroups.hierarchy().parents


def _has_no_loop_devices() -> bool:
    return subprocess.run(["losetup", "--find"], capture_output=True, check=False).returncode != 0


def _engine_refused(kind: str) -> bool:
    return kind in getattr(sys.modules.get("services"), "refused", {})


@pytest.fixture(scope="session", autouse=True)
def layers_root() -> Iterator[Path]:
    """Layers of tests never mix with the user's, nor with those of another xdist worker."""
    from podbot.sandbox import layers

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


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    # All workers have ended by then, and pytest has not yet said how it went.
    yield
    harm = session.config.stash[HARM] = _harm(session.config)
    strict = os.environ.get("PODBOT_CI") == "1" and not hasattr(session.config, "workerinput")
    wrong = harm or (strict and _unexpected)
    if wrong and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _harm(config: pytest.Config) -> list[str]:
    """What the tests did outside of their places."""
    confinement = config.stash.get(CONFINEMENT, None)
    if confinement is None:
        return []
    found = [f"left behind: {path}" for path in confinement.left()]
    if canary := confinement.harmed():
        found.append(f"the real home is not as it was: {canary}")
    return found


def pytest_unconfigure(config: pytest.Config) -> None:
    if CONFINEMENT in config.stash:
        config.stash[CONFINEMENT].end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.line(f"the same examples again: {seeds.VARIABLE}={_seed()} make test")
    if harm := terminalreporter.config.stash.get(HARM, []):
        terminalreporter.section("the tests did not keep to their own places", red=True)
        for line in harm:
            terminalreporter.line(line)
    if os.environ.get("PODBOT_CI") == "1" and _unexpected:
        terminalreporter.section("skipped, but not on the list in tests/conftest.py", red=True)
        for nodeid, reason in sorted(_unexpected.items()):
            terminalreporter.line(f"{nodeid}: {reason}")
