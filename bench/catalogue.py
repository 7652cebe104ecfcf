"""Every benchmark by name, and what each needs to be installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import (
    apply,
    changes,
    commands,
    container,
    diff,
    egress,
    files,
    framework,
    kernel,
    lifecycle,
    run,
    scale,
    search,
    sparse,
    startup,
    streams,
    tools,
)
from bench.rows import Absent, Outcome
from bench.setting import PACKAGES, Setting, tool


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A name for the command line, what it measures, and the rival it cannot do without."""

    name: str
    measure: Callable[[Setting], Sequence[Outcome]]
    needs: str | None = None

    @property
    def about(self) -> str:
        """What it measures, in a line."""
        return (self.measure.__doc__ or "").strip().splitlines()[0].rstrip(".")

    def run(self, setting: Setting) -> list[Outcome]:
        """Its rows, or why there are none; a benchmark that fails does not stop the others."""
        if self.needs is not None and tool(self.needs) is None:
            reason = f"{self.needs} is not installed; install the package {PACKAGES[self.needs]}"
            return [Absent(self.name, self.about, reason, "skipped")]
        try:
            return list(self.measure(setting))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return [Absent(self.name, self.about, reason, "FAILED")]


ALL = (
    Benchmark("exec", commands.exec_true),
    Benchmark("create", lifecycle.create_once, needs="bwrap"),
    Benchmark("burst", lifecycle.create_many, needs="bwrap"),
    Benchmark("files", files.write_and_read),
    Benchmark("kernel", kernel.answer),
    Benchmark("kernel-start", kernel.start),
    Benchmark("stream", streams.stdout),
    Benchmark("grep", search.grep, needs="rg"),
    Benchmark("scale", scale.thousand),
    Benchmark("version", startup.version),
    Benchmark("looks", startup.looks),
    Benchmark("one-path", startup.one_path),
    Benchmark("run", run.true, needs="bwrap"),
    Benchmark("run-allow", run.allowing),
    Benchmark("cycle", changes.whole_cycle, needs="git"),
    Benchmark("podman", changes.beside_podman, needs="podman"),
    Benchmark("container", container.container, needs="podman"),
    Benchmark("capture", changes.capture_at_scale),
    Benchmark("diff", diff.many, needs="git"),
    Benchmark("diff-hard", diff.hard, needs="git"),
    Benchmark("apply", apply.apply),
    Benchmark("apply_many", apply.apply_many),
    Benchmark("sparse", sparse.sparse),
    Benchmark("tool-call", framework.tool_call),
    Benchmark("tool-calls", framework.tool_calls),
    Benchmark("tools", tools.calls, needs="rg"),
    Benchmark("local", tools.local),
    Benchmark("egress", egress.request),
    Benchmark("egress-bytes", egress.throughput),
    Benchmark("egress-body", egress.plain_body),
    Benchmark("egress-many", egress.many),
)
