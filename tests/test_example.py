"""`make run`: the example keeps its promises, says so, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podbot.sandbox import Layer, OverlaySandbox

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE = [sys.executable, str(EXAMPLES / "review_an_agent.py")]

sys.path.insert(0, str(EXAMPLES))
from layer_changes import Change, printable, read_changes  # noqa: E402 - it is no package


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as folder:
        yield Path(folder).resolve()


def run(home: Path, *before: str) -> tuple[int, str, str]:
    """The example as a person with this home runs it: its exit code, stdout and stderr.

    Nothing may be left of it, neither in the home nor where its layers were.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PODBOT_LAYERS"}
    with subprocess.Popen(
        [*before, *EXAMPLE],
        env=environment | {"HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate()
    layers = f"podbot-demo-{process.pid}-"
    assert not [name for name in os.listdir("/var/tmp") if name.startswith(layers)]
    assert list(home.iterdir()) == []
    return process.returncode, out, err


def test_every_promise_is_kept_twice_in_a_row(home: Path) -> None:
    for _ in range(2):
        code, out, err = run(home)

        assert (code, err) == (0, ""), out
        assert out.count("  kept    ") == 5
        assert "BROKEN" not in out
        assert "+    return celsius * 9 / 5 + 32" in out
        assert "- deleted  scratch.txt" in out
        assert "a private key: refused: No such file or directory" in out
        assert "the internet: refused: Network is unreachable" in out
        assert "FAKE KEY" not in out
        assert "\x1b" not in out


def test_it_has_colours_at_a_terminal(home: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    with subprocess.Popen(
        EXAMPLE, env=environment | {"HOME": str(home)}, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # how a terminal says that the other end is gone
    os.close(ours)

    assert process.returncode == 0
    assert b"\x1b[32mkept  \x1b[0m" in shown


def test_without_user_namespaces_it_names_the_error_and_the_remedy(home: Path) -> None:
    off = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    allowed = subprocess.run(["unshare", "-Ur", "sh", "-c", off, "sh", "true"], check=False)
    assert allowed.returncode == 0, "this test needs user namespaces in order to take them away"

    code, out, err = run(home, "unshare", "-Ur", "sh", "-c", off, "sh")

    assert code == 2, out + err
    assert "(userns_denied)" in err
    assert "remedy: run `podbot doctor`" in err
    assert "Traceback" not in err


# What the example says about a layer must be true of odd ones as well.


@pytest.fixture
def target(home: Path) -> Path:
    for name, text in {"a/one": "1", "a/two": "2", "b/three": "3", "file": "f\n"}.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    (home / "link").symlink_to("file")
    return home


def changes_of(target: Path, script: str) -> dict[str, str]:
    with OverlaySandbox(target) as sandbox:
        sandbox.exec(["sh", "-ec", script]).check()
    assert isinstance(sandbox.layer, Layer)
    found = read_changes(sandbox.layer)
    sandbox.layer.discard()
    assert len({change.path for change in found}) == len(found)
    return {change.path: change.verb for change in found}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo more >> file", {"file": "changed"}),
        ("rm -r a", {"a/one": "deleted", "a/two": "deleted"}),
        ("rm -r a; mkdir a; echo > a/x", {"a/x": "added", "a/one": "deleted", "a/two": "deleted"}),
        ("rm -r a; mkdir a; printf 1 > a/one", {"a/two": "deleted"}),
        ("rm -r a; echo x > a", {"a": "added", "a/one": "deleted", "a/two": "deleted"}),
        ("rm file; mkdir file; echo x > file/in", {"file": "deleted", "file/in": "added"}),
        ("mkdir -p new/a new/b; echo > new/a/x", {"new/a/x": "added", "new/b/": "added"}),
        ("ln -sfn b/three link", {"link": "changed"}),
        ("mkfifo pipe", {"pipe": "added"}),
        ("touch file", {}),
        ("chmod 600 file", {}),
    ],
)  # fmt: skip
def test_the_list_is_what_happened(target: Path, script: str, expected: dict[str, str]) -> None:
    assert changes_of(target, script) == expected


def test_a_link_in_a_layer_is_shown_and_not_followed(target: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("do not show this")

    with OverlaySandbox(target) as sandbox:
        sandbox.symlink("evil", str(tmp_path / "secret"))
    assert sandbox.layer is not None
    [change] = read_changes(sandbox.layer)
    sandbox.layer.discard()

    assert "do not show this" not in "\n".join(change.diff())
    assert f"+link to {tmp_path}/secret" in change.diff()


def test_a_copied_target_gives_the_same_list(target: Path, tmp_path: Path) -> None:
    upper = tmp_path / "0.upper"
    (upper / "a").mkdir(parents=True)
    (upper / "a" / "one").write_text("1")
    (upper / "file").write_text("other")
    (upper / "link").symlink_to("file")
    layer = Layer(tmp_path, (str(target),), 0.0, 0, "copy")

    found = {change.path: change.verb for change in read_changes(layer)}

    assert found == {"a/two": "deleted", "b/three": "deleted", "file": "changed"}


def test_what_a_person_sees_cannot_steer_a_terminal() -> None:
    change = Change("x", "added", None, b"\x1b[2J\xff\xe2\x80\xae")

    assert change.diff()[-1] == "+\\x1b[2J\\xff\\u202e"
    assert Change("x", "changed", b"\0", b"").diff() == ["binary file x changed"]
    assert printable("tab\tstays") == "tab\tstays"
