"""``shell_execute`` and ``evaluate_python``, written once against `Sandbox`.

What a command did is told as data. Whatever it did to files, the session's picture of them is
brought up to date before the call ends.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podbot.prompt.result import ToolResult
from podbot.tools import evaluation, shell
from podbot.tools.evaluation import EvalParams, EvalResult, cut
from podbot.tools.live import Live
from podbot.tools.shell import ShellParams, ShellResult

if TYPE_CHECKING:
    from podbot.prompt.context import ToolContext


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """What differs from section to section. ``eval_characters``: None is any size.

    ``shell_strings``: whether a command may be one string, which a shell reads.
    """

    shell_seconds: float = shell.DEFAULT_SECONDS
    eval_characters: int | None = None
    shell_strings: bool = True


class CommandTools:
    """``shell_execute evaluate_python`` in one workspace."""

    def __init__(self, live: Live, limits: CommandLimits):
        self._live = live
        self._limits = limits

    def shell_execute(
        self, params: ShellParams, *, context: ToolContext
    ) -> ToolResult[ShellResult]:
        """Run a command."""
        limits = self._limits
        command = shell.checked(
            params, self._live.workdir, limits.shell_seconds, limits.shell_strings
        )
        with self._live.call(context) as sandbox:
            result = shell.run(sandbox, command, self._live.seconds(context, command.seconds))
        # The program alone: its arguments may hold what nobody should find in a log.
        self._live.logger.info(
            "command.ended",
            program=command.argv[0],
            exit_code=result.exit_code,
            duration_ms=result.duration_ms,
            timed_out=result.timed_out,
        )
        self._live.sync_after_command()
        shown = cut(shlex.join(command.argv), 100)
        if result.timed_out:
            message = f"{shown} was killed after {command.seconds:g} s; its output so far:"
        else:
            message = f"{shown} exited with {result.exit_code} after {result.duration_ms} ms."
        return ToolResult(message, result)

    def evaluate_python(
        self, params: EvalParams, *, context: ToolContext
    ) -> ToolResult[EvalResult]:
        """Run a piece of Python. An exception in it makes the call a failing one."""
        evaluation.check(params, self._limits.eval_characters)
        with self._live.call(context) as sandbox:
            seconds = self._live.seconds(context, evaluation.SECONDS)
            done = evaluation.evaluate(sandbox, params.code, seconds)
        self._live.logger.info("code.ended", exit_code=done.exit_code, timed_out=done.timed_out)
        if done.timed_out:
            message = f"The code ran longer than {seconds:g} s and was ended."
        elif done.exit_code != 0:
            message = f"The code failed (exit code {done.exit_code})"
            message += "; stderr says why." if done.result.stderr else "."
        else:
            self._live.sync_after_command()
            return ToolResult("The code ran to its end.", done.result)
        # What it did to files before it failed is looked at once the call is taken back.
        return ToolResult(message, done.result, success=False)
