"""Clients for the tests of `podbot mcp`: the SDK's own, and one that speaks the bare protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult

PODBOT = [sys.executable, "-m", "podbot"]
DEADLINE = 180.0
"""Seconds after which a test gives up, on a machine that is very busy."""


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def running(*words: str) -> bool:
    """Whether any process of this machine has this command line."""
    wanted = "\0".join(words).encode() + b"\0"
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if Path("/proc", entry, "cmdline").read_bytes() == wanted:
                    return True
            except OSError:
                continue  # it has ended
    return False


def text_of(result: CallToolResult) -> str:
    """The text of a result that has nothing else."""
    assert [block.type for block in result.content] == ["text"]
    return result.content[0].text  # type: ignore[union-attr]  # as was just seen


class Served:
    """A real `podbot mcp` and the SDK's client for it, for code that blocks."""

    def __init__(self, client: Client, portal: Any):
        self.client = client
        self._portal = portal

    def call(self, tool: str, /, **arguments: object) -> CallToolResult:
        """Call a tool, whatever comes of it."""
        result: CallToolResult = self._portal.call(self.client.call_tool, tool, arguments)
        return result

    def said(self, tool: str, /, **arguments: object) -> str:
        """What a tool that succeeds says."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result
        return text_of(result)

    def refused(self, tool: str, /, **arguments: object) -> str:
        """What a tool that fails says."""
        result = self.call(tool, **arguments)
        assert result.is_error, result
        return text_of(result)

    def do(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Run a coroutine function in the client's event loop."""
        return self._portal.call(function, *arguments)


@contextmanager
def served(*options: str, cwd: Path, errors: Path) -> Iterator[Served]:
    """`podbot mcp` as a client starts it; what it says on stderr is in ``errors``.

    The SDK's client gives a server ten seconds to answer and two to end, and then begins anew or
    kills it. Neither is what is tested, and a busy machine may need more.
    """
    parameters = StdioServerParameters(
        command=PODBOT[0],
        args=[*PODBOT[1:], "mcp", *options],
        cwd=cwd,
        env={**os.environ},
    )
    from mcp.client.stdio import stdio_client

    with pytest.MonkeyPatch.context() as patch, open(errors, "w") as errlog:
        patch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", DEADLINE)
        patch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", DEADLINE)
        patch.setattr("mcp.client.stdio._WRITER_FLUSH_TIMEOUT", DEADLINE)
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(
                Client(stdio_client(parameters, errlog=errlog))
            ) as client,
        ):
            yield Served(client, portal)


class Bare:
    """A client that writes lines and reads lines, and so sees every byte of stdout."""

    def __init__(self, *options: str, cwd: Path):
        self.process = subprocess.Popen(
            [*PODBOT, "mcp", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            start_new_session=True,
        )
        self.lines: list[bytes] = []
        self.errors = b""
        self._threads = [
            threading.Thread(target=self._read_lines), threading.Thread(target=self._read_errors)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()
        self._number = 0

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            self.lines.extend(stdout)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self.errors += line

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: dict[str, object]) -> None:
        """Send a message."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def request(self, method: str, params: dict[str, object]) -> int:
        """Send a request; gives its number."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        return self._number

    def call(self, tool: str, /, **arguments: object) -> int:
        """Send a call of a tool; gives its number."""
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def greet(self) -> dict[str, Any]:
        """The handshake of older protocols, which most clients still begin with."""
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        answer = self.answer(self.request("initialize", params))
        self.send({"method": "notifications/initialized"})
        return answer

    def messages(self) -> list[dict[str, Any]]:
        """Everything that came so far; each line must be a message."""
        found = [json.loads(line) for line in list(self.lines)]
        assert all(message["jsonrpc"] == "2.0" for message in found)
        return found

    def answer(self, number: int | None) -> dict[str, Any]:
        """The answer to a request, once it is there."""
        found: list[dict[str, Any]] = []

        def came() -> bool:
            assert self.process.poll() is None or self._ended(), self.errors
            found.extend(
                message
                for message in self.messages()
                if "method" not in message and message["id"] == number
            )
            return bool(found)

        until(came, f"an answer to {number}")
        return found[0]

    def _ended(self) -> bool:
        for thread in self._threads:
            thread.join()
        return True

    def hang_up(self) -> int:
        """Close stdin and wait for the end; gives the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait()

    def tell(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; gives the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end, and for all that was said."""
        status = self.process.wait(DEADLINE)
        self._ended()
        return status

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._ended()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
