"""Watch an agent work in an overlay sandbox, then see what it changed: what `make run` runs.

A scripted agent mends a small sample project, and tries to read a planted key and to reach the
network. You see its output as it comes, what it changed, that both attempts were refused, that
the real project is as it was, and what the sandbox enforces on this host. Everything is real but
the agent's mind; everything made on the way is removed.

Exit codes: 0 all as promised, 1 a promise was broken, 2 the sandbox could not be made or was lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import podbot.sandbox
from podbot import changes
from podbot.changes import ChangeSet
from podbot.changes.diffs.text import shown
from podbot.sandbox import DEFAULT_HIDDEN, Policy, Sandbox, SandboxError

AGENT = Path(__file__).with_name("scripted_agent.py")
PYTHON = os.path.realpath(sys.executable)  # a virtual environment may lie where nobody sees it
KEY = "-----BEGIN FAKE KEY-----\nplanted by the example\n-----END FAKE KEY-----\n"
REPORT = "/tmp/report.json"  # inside: the sandbox's own /tmp

PROJECT = {
    "README.md": "# temperature\n\nConverts degrees. Run `python -m unittest`.\n",
    "temperature.py": (
        '"""Degrees Celsius and Fahrenheit."""\n\n\n'
        "def to_fahrenheit(celsius):\n"
        "    return (celsius + 32) * 9 / 5\n"
    ),
    "test_temperature.py": (
        "import unittest\n\n"
        "from temperature import to_fahrenheit\n\n\n"
        "class Boiling(unittest.TestCase):\n"
        "    def test_water_boils(self):\n"
        "        self.assertEqual(to_fahrenheit(100), 212)\n"
    ),
    "scratch.txt": "things to try some day\n",
}

EXPECTED = {
    "scratch.txt": "deleted",
    "temperature.py": "modified",
    "test_extremes.py": "added",
}


@dataclass(frozen=True, slots=True)
class Demo:
    """The places of one run, and the port of a service on the host."""

    project: Path
    notes: Path
    key: Path
    port: int


def main() -> int:
    """Run the demonstration; an error of podbot's own is told with its remedy."""
    try:
        with demo() as place:
            return review(place)
    except SandboxError as error:
        print(f"podbot: the sandbox failed ({error.kind}): {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def review(place: Demo) -> int:
    """Let the agent work, then show what came of it and whether every promise was kept."""
    heading("An agent works on", str(place.project).replace(str(Path.home()), "~", 1))
    before = fingerprint(place.project)
    policy = Policy(hidden=(*DEFAULT_HIDDEN, str(place.key.parent)))
    with podbot.sandbox.open("overlay", target=place.project, policy=policy) as sandbox:
        report = run_agent(sandbox, place)
    assert sandbox.layer is not None  # noqa: S101 - the overlay backend always has one
    found = changes.read(sandbox.layer)
    show_changes(found)
    sandbox.layer.discard()  # else it stays on disk until someone does
    show_guarantees(sandbox)
    return show_promises(
        {
            "it worked: the test failed before its edit and passed after": (
                report.get("failed_before") is True and report.get("passed_after") is True
            ),
            "it changed what you saw above, and nothing else": (
                {change.path: change.kind for change in found} == EXPECTED
            ),
            "it could not read the key, though a file beside it was readable": (
                report.get("key") == "refused: No such file or directory"
                and report.get("notes") == "read: not secret"
            ),
            "it reached neither the internet nor a service on this host": (
                report.get("internet") == "refused: Network is unreachable"
                and report.get("host") == "refused: Connection refused"
            ),
            "the real project is untouched, to the byte, mode and time": (
                fingerprint(place.project) == before
            ),
        }
    )


@contextlib.contextmanager
def demo() -> Iterator[Demo]:
    """A project, a key and a service to attack; gone afterwards, layers too."""
    with contextlib.ExitStack() as stack:
        # In the home, where projects and keys lie; /tmp would be private to the sandbox anyway.
        parent = Path.home() if os.access(Path.home(), os.W_OK) else Path.cwd()
        folder = Path(tempfile.mkdtemp(prefix=".podbot-demo-", dir=parent)).resolve()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if "PODBOT_LAYERS" not in os.environ and os.access("/var/tmp", os.W_OK):
            layers = tempfile.mkdtemp(prefix=f"podbot-demo-{os.getpid()}-", dir="/var/tmp")
            stack.callback(shutil.rmtree, layers, ignore_errors=True)
            os.environ["PODBOT_LAYERS"] = layers
        place = Demo(folder / "project", folder / "notes.txt", folder / ".ssh" / "id_demo",
                     stack.enter_context(service()))  # fmt: skip
        place.project.mkdir()
        for name, text in PROJECT.items():
            (place.project / name).write_text(text)
        place.notes.write_text("not secret\n")
        place.key.parent.mkdir(mode=0o700)
        place.key.write_text(KEY)
        yield place


@contextlib.contextmanager
def service() -> Iterator[int]:
    """Something that listens on the host's loopback, and really can be reached from the host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        yield port


def run_agent(sandbox: Sandbox, place: Demo) -> dict[str, object]:
    """Run the agent inside, show its output as it comes, and give what it reported."""
    sandbox.upload(AGENT, "/tmp/agent.py")
    paths = [str(place.notes), str(place.key), str(place.port), REPORT]
    argv = [PYTHON, "-I", "/tmp/agent.py", *paths]
    with sandbox.spawn(argv, stdin=False) as process:
        rest = b""
        for chunk in process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                text = shown(line.decode("utf-8", "replace"))
                text = dim(text) if text.startswith("  ") else text
                print(f"  {dim('│')} {text.replace('refused:', yellow('refused:'))}", flush=True)
        if process.wait(timeout=60) != 0:
            print(shown(process.stderr.read_all().decode("utf-8", "replace")), file=sys.stderr)
            return {}
    found = json.loads(sandbox.read(REPORT, max_bytes=10_000))
    return found if isinstance(found, dict) else {}


def show_changes(found: ChangeSet) -> None:
    """The list of changes, then each as a diff."""
    heading(
        "What it changed",
        "in a layer of its own, which is yours to keep or, as here, to throw away",
    )
    signs = {
        "added": green("+ added   "),
        "modified": yellow("~ modified"),
        "deleted": red("- deleted "),
    }
    for change in found:
        print(f"  {signs.get(change.kind, change.kind)}  {shown(change.path)}")
    colours = {"+": green, "-": red, "@": cyan}
    for change in found:
        print()
        for line in changes.for_people(changes.diff_of(found, change)):
            print("  " + colours.get(line[:1], str)(line))


def show_guarantees(sandbox: Sandbox) -> None:
    """What is enforced here, and by what."""
    heading("What the sandbox enforced on this host")
    width = max(len(guarantee.name) for guarantee in sandbox.guarantees)
    room = max(30, shutil.get_terminal_size().columns - width - 9)
    for guarantee in sandbox.guarantees:
        mark = green("yes") if guarantee.enforced else red("no ")
        first, *rest = textwrap.wrap(guarantee.by, room, break_on_hyphens=False)
        print(f"  {mark}  {guarantee.name:<{width}}  {dim(first)}")
        for line in rest:
            print(f"{'':<{width + 9}}{dim(line)}")


def show_promises(promises: dict[str, bool]) -> int:
    """Each promise and whether it was kept; the exit code."""
    heading("Promises")
    for promise, kept in promises.items():
        print(f"  {green('kept  ') if kept else red('BROKEN')}  {promise}")
    return 0 if all(promises.values()) else 1


def fingerprint(folder: Path) -> str:
    """One number for all that can be seen of a tree: names, modes, times, contents."""
    digest = hashlib.sha256()
    for path in sorted([folder, *folder.rglob("*")]):
        facts = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else b""
        digest.update(repr((str(path), facts.st_mode, facts.st_mtime_ns, content)).encode())
    return digest.hexdigest()


# Colours only for a person at a terminal who did not ask for none (https://no-color.org).
COLOURED = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def colour(code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if COLOURED else text


def green(text: str) -> str:
    return colour("32", text)


def red(text: str) -> str:
    return colour("31", text)


def yellow(text: str) -> str:
    return colour("33", text)


def cyan(text: str) -> str:
    return colour("36", text)


def dim(text: str) -> str:
    return colour("2", text)


def heading(text: str, detail: str = "") -> None:
    print(f"\n{colour('1', text)}" + (f"  {dim(detail)}" if detail else ""), flush=True)


if __name__ == "__main__":
    sys.exit(main())
