"""Started with signals ignored or blocked, as a script's background jobs are, podbot works too.

What is ignored stays ignored for podbot itself. Nothing waits for ever, and what runs inside
begins as after a login.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import workplace
from screen import PODBOT

# Becomes a program that has some signals ignored and some blocked.
BECOME = """
import os, signal, sys
kind, *command = sys.argv[1:]
every = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
ignored = {
    "as a background job": {signal.SIGINT, signal.SIGQUIT},
    "by nohup": {signal.SIGHUP},
    "with ends of children ignored": {signal.SIGCHLD},
    "with all ignored": every,
    "with all blocked": set(),
}[kind]
for number in ignored:
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if kind == "with all blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
os.execv(command[0], command)
"""
KINDS = [
    "as a background job", "by nohup", "with ends of children ignored", "with all ignored",
    "with all blocked",
]  # fmt: skip

# What a command was given: the numbers of the signals that it ignores, and of those blocked.
LOOK = """
import signal
ignored = [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
print(sorted(set(ignored) - {13, 25}), sorted(map(int, signal.pthread_sigmask(0, ()))))
"""


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def started(kind: str, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BECOME, kind, *command], cwd=folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ends_and_its_command_begins_as_after_a_login(kind: str, project: Path) -> None:
    python = os.path.realpath(sys.executable)
    done = started(kind, *PODBOT, "run", "--discard", "--", python, "-c", LOOK, folder=project)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] []\n"


LIBRARY = """
import podbot.sandbox, sys
with podbot.sandbox.open(sys.argv[1]) as sandbox:
    print(sandbox.exec([sys.argv[2], "-c", sys.argv[3]]).check().stdout, end="")
    late = sandbox.exec(["sleep", "600"], timeout=0.2)
    assert late.timed_out
"""


@pytest.mark.parametrize("backend", ["overlay", "local"])
@pytest.mark.parametrize("kind", ["as a background job", "by nohup", "with all blocked"])
def test_a_program_that_uses_the_library_is_served(kind: str, backend: str, project: Path) -> None:
    python = os.path.realpath(sys.executable)
    words = [sys.executable, "-c", LIBRARY, backend, python, LOOK]
    done = started(kind, *words, folder=project)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] []\n"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_host_can_do_is_told_the_same(kind: str, project: Path) -> None:
    usual = subprocess.run(
        [*PODBOT, "doctor", "--json"], cwd=project, capture_output=True, check=False
    )
    done = started(kind, *PODBOT, "doctor", "--json", folder=project)

    assert done.returncode == usual.returncode, done.stderr


def test_a_server_that_shall_not_hear_an_interrupt_does_not(project: Path) -> None:
    command = [sys.executable, "-c", BECOME, "as a background job", *PODBOT, "mcp"]
    with subprocess.Popen(
        command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":'
            b'"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
        )
        server.stdin.flush()
        assert b'"id":1' in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        server.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
        server.stdin.flush()
        assert b'"id":2' in server.stdout.readline()
        server.stdin.close()
        assert server.wait(60) == 0
