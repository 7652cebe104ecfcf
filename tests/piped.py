"""A backend that is two pipes and a Python: what `podbot.sandbox.over_stream` leaves to be written.

A launcher for an ssh host, a pod or a node elsewhere differs in how the other side is started and
ended.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from podbot.sandbox import (
    Guarantee,
    Launched,
    Launcher,
    Limits,
    Policy,
    interpreter,
    layers,
    over_stream,
)
from podbot.sandbox.local import SANDBOX_VARIABLE, kill_marked, rlimits


class PipedLauncher(Launcher):
    """Starts a Python that has nothing of podbot, and sends it the guest over two pipes."""

    name = "piped"

    def __init__(
        self,
        policy: Policy | None = None,
        limits: Limits | None = None,
        command: list[str] | None = None,
        seconds: float = 60.0,
    ):
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        self._command = command or over_stream.command(sys.executable)
        self._seconds = seconds

    def launch(self) -> Launched:
        folder = Path(tempfile.mkdtemp(prefix="podbot-piped-"))
        token = secrets.token_hex(8)
        reading, out = os.pipe()
        into, writing = os.pipe()
        there = subprocess.Popen(
            self._command, stdin=into, stdout=out, stderr=subprocess.DEVNULL, env={}, cwd="/"
        )
        os.close(into)
        os.close(out)

        def end() -> None:
            """The guest ended when its line was closed; see that it did."""
            try:
                there.wait(30)
            except subprocess.TimeoutExpired:
                there.kill()
                there.wait()
            kill_marked(token)  # a guest that was killed ended nothing
            if folder.exists():
                layers.remove(folder)

        stream = over_stream.of_descriptors(reading, writing)
        try:
            near = over_stream.boot(stream, seconds=self._seconds)
        except BaseException:
            there.kill()
            end()
            raise
        config = {
            "workdir": str(folder),
            "root": str(folder),
            "env": self.policy.environment_inside(Path.home()) | {SANDBOX_VARIABLE: token},
            "python": self.policy.python,
            "rg": interpreter.ripgrep(),
            "rlimits": rlimits(self.limits),
            "subreaper": True,
        }
        guarantees = (Guarantee("files", False, "nothing: commands run as you, on this host"),)
        return Launched(str(folder), guarantees, end, near, config, descriptors=False)
