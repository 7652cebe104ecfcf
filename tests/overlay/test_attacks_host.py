"""Attacks on the host through what it shares read-only: devices, leases of files, paths."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import inside

from podbot.errors import Kind, LaunchError
from podbot.sandbox import Policy
from podbot.sandbox.overlay.launcher import OverlaySandbox


@pytest.fixture
def spare() -> Iterator[Path]:
    """An empty folder of the host's, outside of what is private inside."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        yield Path(folder).resolve()


def test_the_hosts_device_nodes_cannot_be_changed(target: Path) -> None:
    before = os.stat("/dev/full")
    with OverlaySandbox(target, discard=True) as sandbox:
        found = inside(
            sandbox,
            """
found = [attempt(os.chmod, "/dev/full", 0o666), attempt(os.utime, "/dev/full", (1, 1))]
with open("/dev/null", "w") as sink:
    sink.write("still works")
tell(found)
""",
        )
    assert all(result != 0 for result in found)
    assert os.stat("/dev/full") == before


def test_no_lease_makes_the_host_wait(target: Path, spare: Path) -> None:
    (spare / "victim").write_text("x")
    with OverlaySandbox([target, spare], discard=True) as sandbox:
        found = inside(
            sandbox,
            """
import fcntl
fd = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    tell("taken")
except OSError as error:
    tell(error.errno)
""",
            str(spare / "victim"),
        )
    assert found == 1  # EPERM


def test_the_limit_that_keeps_crash_handlers_away_stays(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        found = inside(
            sandbox,
            """
import resource
before = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))
tell([before, resource.getrlimit(resource.RLIMIT_CORE)])
""",
        )
    assert found == [[1, 1], [1, 1]]


def test_a_folder_made_writable_for_real_may_not_hold_a_secret(target: Path, spare: Path) -> None:
    (spare / "cache").mkdir()
    policy = Policy(hidden=(str(spare / "cache" / "token"),), writable=(str(spare / "cache"),))
    with pytest.raises(LaunchError) as caught:
        OverlaySandbox(target, policy=policy)
    assert caught.value.kind is Kind.INVALID
    assert caught.value.remedy


def test_a_secret_that_is_a_link_into_the_target_leaves_the_target_writable(
    target: Path, spare: Path
) -> None:
    (target / "real").write_text("secret")
    (spare / "link").symlink_to(target / "real")
    policy = Policy(hidden=(str(spare / "link"),))
    with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
        assert not sandbox.exists("real")
        sandbox.write("new", b"x")
        assert sandbox.read("new") == b"x"


def test_a_target_swapped_for_a_link_is_never_followed(target: Path, spare: Path) -> None:
    """Whoever can write the target's parent swaps it for a link while sandboxes are opened."""
    secret = spare / "secret"
    secret.mkdir()
    (secret / "key").write_text("KEY")
    place, link = spare / "place", spare / "link"
    place.mkdir()
    link.symlink_to(secret)
    policy = Policy(hidden=(str(secret / "key"),))
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(place, spare / "aside")
            os.rename(link, place)
            time.sleep(0.0005)
            os.rename(place, link)
            os.rename(spare / "aside", place)
            time.sleep(0.0005)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(30):
            try:
                with OverlaySandbox(place, policy=policy, discard=True) as sandbox:
                    assert "KEY" not in sandbox.exec(["cat", "key", str(place / "key")]).stdout
            except LaunchError:
                continue  # it met the link, or nothing: that is the right answer
    finally:
        stop.set()
        swapping.join()
    assert (secret / "key").read_text() == "KEY"
