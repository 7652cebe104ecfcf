"""Results as text for people (an aligned table, Markdown) and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.rows import Absent, Outcome, Row

HEADER = ("what", "ours", "p90", "unit", "rival", "median", "p90", "ratio", "target", "")
NUMBERS = (1, 2, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class Report:
    """One run: the machine, what was measured, and doubts about it."""

    machine: Mapping[str, str | int | float | bool]
    outcomes: Sequence[Outcome]
    warnings: Sequence[str] = ()

    @property
    def missed(self) -> int:
        """How many rows did not keep to their target or could not be measured at all."""
        return sum(outcome.verdict in ("MISSED", "FAILED") for outcome in self.outcomes)

    def as_data(self) -> dict[str, object]:
        """The whole of it, ready for JSON."""
        return {
            "machine": dict(self.machine),
            "warnings": list(self.warnings),
            "rows": [_data(outcome) for outcome in self.outcomes],
        }

    def as_table(self) -> str:
        """An aligned table for a terminal."""
        lines = [HEADER, *(_cells(row) for row in self.outcomes if isinstance(row, Row))]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
        table = [
            "  ".join(
                cell.rjust(width) if column in NUMBERS else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        table.insert(1, "-" * max(map(len, table)))
        return "\n".join([self._about(), "", *table, *self._remarks("")])

    def as_markdown(self) -> str:
        """The same as a Markdown table."""
        lines = [HEADER, tuple("---:" if n in NUMBERS else "---" for n in range(len(HEADER)))]
        lines += [_cells(row) for row in self.outcomes if isinstance(row, Row)]
        table = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([self._about(), "", *table, "", *self._remarks("- ")]) + "\n"

    def _about(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        return f"podbot benchmarks: {facts}"

    def _remarks(self, bullet: str) -> list[str]:
        lines = [
            f"{bullet}{absent.verdict}: {absent.benchmark} ({absent.what}): {absent.reason}"
            for absent in self.outcomes
            if isinstance(absent, Absent)
        ]
        return lines + [f"{bullet}warning: {warning}" for warning in self.warnings]


def _cells(row: Row) -> tuple[str, ...]:
    rival = row.rival
    return (
        row.what,
        _number(row.ours.median),
        _number(row.ours.p90),
        row.unit,
        row.rival_name,
        _number(rival.median) if rival else "",
        _number(rival.p90) if rival else "",
        f"{row.value:.2f}" if rival else "",
        str(row.target) if row.target else "",
        row.verdict,
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.2f}"


def _data(outcome: Outcome) -> dict[str, object]:
    if isinstance(outcome, Absent):
        return {
            "benchmark": outcome.benchmark,
            "what": outcome.what,
            "reason": outcome.reason,
            "verdict": outcome.verdict,
        }
    target, rival = outcome.target, outcome.rival
    return {
        "benchmark": outcome.benchmark,
        "what": outcome.what,
        "unit": outcome.unit,
        "ours": {"median": outcome.ours.median, "p90": outcome.ours.p90},
        "rival": {"name": outcome.rival_name, "median": rival.median, "p90": rival.p90}
        if rival
        else None,
        "value": outcome.value,
        "target": {"limit": target.limit, "at_least": target.at_least} if target else None,
        "verdict": outcome.verdict,
    }
