"""Results as a picture: how much of what is allowed each row takes."""

from __future__ import annotations

from pathlib import Path

from bench.report import Report
from bench.rows import Row, Target

WITHIN, BEYOND = "#2a9d6f", "#d1495b"
LONGEST = 2.0


def draw(report: Report, path: Path) -> bool:
    """Save the picture; False if there is nothing to draw it with or of."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = [
        (row, row.target)
        for row in report.outcomes
        if isinstance(row, Row) and row.target is not None and row.target.limit > 0
    ]
    if not rows:
        return False
    figure = Figure(figsize=(10, 1.4 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, (row, target) in enumerate(rows):
        used = target.used(row.value)
        axes.barh(place, min(used, LONGEST), color=WITHIN if row.verdict == "ok" else BEYOND)
        axes.text(LONGEST + 0.06, place, _label(row, target), va="center", fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.what for row, _ in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, LONGEST + 1.1)
    axes.set_xticks([0, 0.5, 1, 1.5, 2], ["0", "0.5", "1", "1.5", "2 or more"])
    axes.set_xlabel("share of what is allowed: left of the line is within the target")
    machine = report.machine
    axes.set_title(
        f"podbot {machine['podbot']}: kernel {machine['kernel']}, {machine['cpus']} CPUs,"
        f" Python {machine['python']}, {'root' if machine['root'] else 'ordinary user'}",
        fontsize=10,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)
    return True


def _label(row: Row, target: Target) -> str:
    value = f"{row.value:.2f}" if row.value < 100 else f"{row.value:.0f}"
    versus = f"times {row.rival_name}" if row.rival else row.unit
    return f"{value} {versus}".rstrip() + f" ({target})".replace("<=", "≤").replace(">=", "≥")
