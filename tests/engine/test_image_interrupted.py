"""A bootstrap that fails or is interrupted: what people are told, and that nothing stays.

A script stands in for mmdebstrap; what it says is what the real one said. The real one is tried in
tests/e2e.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from podbot.engine.image._debian import DebianRoot, bootstrap
from podbot.errors import ContainerError, Kind

MIRROR = "http://me:secret@127.0.0.1:9/debian"

OUT_OF_REACH = """\
I: automatically chosen mode: unshare
I: using /tmp/mmdebstrap.viHNiM2YiR as tempdir
I: running apt-get update...
Err:1 http://127.0.0.1:9/debian bookworm InRelease
  Could not connect to 127.0.0.1:9 (127.0.0.1). - connect (111: Connection refused)
E: Failed to fetch http://127.0.0.1:9/debian/dists/bookworm/InRelease  Could not connect to 127.0.0.1:9
E: Some index files failed to download. They have been ignored, or old ones used instead.
I: main() received signal PIPE: waiting for setup...
E: mmdebstrap failed to run
"""  # noqa: E501 - as it was said
NO_NAME = "E: Failed to fetch http://no.invalid/InRelease  Could not resolve 'no.invalid'"
NO_RELEASE = "E: The repository 'http://127.0.0.1:9/debian bookworm' does not have a Release file."
NOT_SIGNED = "E: The repository 'http://127.0.0.1:9/debian bookworm Release' is not signed."
NO_KEY = "E: Failed to fetch http://127.0.0.1:9/x  The following signatures: NO_PUBKEY 0E98"
NO_IDS = "I: automatically chosen mode: unshare\nE: newuidmap 1 0 1001 1 failed"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the place of mmdebstrap."""

    def put(script: str) -> None:
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "mmdebstrap"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/sbin:/usr/bin:/sbin:/bin")

    return put


@pytest.mark.parametrize(
    "said, message, remedy",
    [
        (OUT_OF_REACH, "mirror http://127.0.0.1:9/debian is out of reach", "--mirror"),
        (NO_NAME, "mirror http://127.0.0.1:9/debian is out of reach", "--from scratch"),
        (NO_RELEASE, "mirror http://127.0.0.1:9/debian has not all", "--mirror"),
        (NOT_SIGNED, "is not signed", "debian-archive-keyring"),
        (NO_KEY, "NO_PUBKEY", "debian-archive-keyring"),
        (NO_IDS, "newuidmap", "/etc/subuid"),
    ],
)
def test_a_failure_is_judged_by_what_is_an_error(
    stand_in: Callable[[str], None], tmp_path: Path, said: str, message: str, remedy: str
) -> None:
    (tmp_path / "said").write_text(said)
    stand_in(f"cat {tmp_path}/said >&2; exit 25")
    heard: list[str] = []

    with pytest.raises(ContainerError) as caught:
        list(bootstrap(DebianRoot((), mirror=MIRROR), heard.append))

    assert caught.value.kind is Kind.BUILD_FAILED
    assert message in caught.value.message and "secret" not in str(caught.value)
    assert caught.value.remedy is not None and remedy in caught.value.remedy
    if said is OUT_OF_REACH:
        assert "subuid" not in caught.value.remedy and "subuid" not in caught.value.message
        assert heard == ["running apt-get update"]


# Interrupted


def test_what_is_there_is_handed_on_at_once(
    stand_in: Callable[[str], None], tmp_path: Path
) -> None:
    """Whoever waits for more than the first bytes is deaf to a Ctrl-C between two reads."""
    os.mkfifo(tmp_path / "go on")
    stand_in(f"printf first; read -r _ <'{tmp_path}/go on'; printf second")
    pieces = bootstrap(DebianRoot(()), lambda _: None)

    assert next(pieces) == b"first"
    with open(tmp_path / "go on", "w") as end:
        end.write("\n")

    assert b"".join(pieces) == b"second"


BUILDS = """
import subprocess, sys
from podbot.engine.image import _debian

if "popen" in sys.argv:
    class Popen(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            while not open(sys.argv[1]).read():
                pass
            raise KeyboardInterrupt
    subprocess.Popen = Popen
pieces = _debian.bootstrap(_debian.DebianRoot(()), lambda _: None)
try:
    for piece in pieces:
        pass
finally:
    pieces.close()
"""

# As the real one: it makes a folder to check keys in and dies at the first signal then. Later it
# waits for its children, and removes what it has made itself.
KEYS = 'mkdir "$TMPDIR/mmdebstrap.gpghome.x"; touch "$TMPDIR/mmdebstrap.gpghome.x/pubring.kbx"'
WAITS = "while :; do sleep 0.05; done"
STAGES = {
    "keys": f"{KEYS}; sleep 1000 & echo $$ $! >{{pids}}; {WAITS}",
    "work": f"""{KEYS}; mkdir -p "$TMPDIR/mmdebstrap.root/etc"
trap 'rm -r "$TMPDIR/mmdebstrap.root"; exit 1' TERM
sleep 1000 & echo $$ $! >{{pids}}; {WAITS}""",
    "slow": f"""{KEYS}; mkdir -p "$TMPDIR/mmdebstrap.root/etc"
trap 'sleep 1; rm -r "$TMPDIR/mmdebstrap.root"; exit 1' TERM
echo $$ >{{pids}}; {WAITS}""",
    "output": f"{KEYS}; echo $$ >{{pids}}; head -c 3000000 /dev/zero; {WAITS}",
}


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "stage, how",
    [
        ("keys", [signal.SIGINT]),
        ("work", [signal.SIGINT]),
        ("output", [signal.SIGINT]),
        ("slow", [signal.SIGINT, signal.SIGINT]),
        ("work", [signal.SIGKILL]),
        ("keys", []),  # while it is being started
    ],
)
def test_an_interrupted_bootstrap_ends_with_all_it_started_and_leaves_nothing(
    stand_in: Callable[[str], None], tmp_path: Path, stage: str, how: list[signal.Signals]
) -> None:
    pids, folder = tmp_path / "pids", tmp_path / "temporary"
    pids.touch()
    folder.mkdir()
    stand_in(STAGES[stage].format(pids=pids))
    words = [str(pids)] if how else [str(pids), "popen"]
    builds = subprocess.Popen(
        [sys.executable, "-c", BUILDS, *words],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(pids.read_text)
    for number in how:
        builds.send_signal(number)
        time.sleep(0.2 if len(how) > 1 else 0)  # into its waiting for the end

    assert builds.wait(60) != 0

    until(lambda: all(is_over(int(pid)) for pid in pids.read_text().split()))
    until(lambda: list(folder.iterdir()) == [])
