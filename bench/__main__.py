"""``python -m bench``: arguments in, a table out, results kept in a folder."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench import plot
from bench.catalogue import ALL, Benchmark
from bench.report import Report
from bench.rows import Outcome
from bench.setting import Setting, machine, warnings

RESULTS = Path(__file__).parent / "results"


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; 1 only with ``--strict``, when a target was missed."""
    options = _options(argv)
    if options.list:
        for benchmark in ALL:
            print(f"{benchmark.name:14}{benchmark.about}")
        return 0
    chosen = [each for each in ALL if not options.only or each.name in options.only]
    report = _run(chosen, options.quick, options.rounds)
    _keep(report, options.results)
    if options.json:
        print(json.dumps(report.as_data(), indent=2))
    else:
        print(report.as_table())
    return 1 if options.strict and report.missed else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure podbot beside its rivals.")
    names = [benchmark.name for benchmark in ALL]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help="only these")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller amounts")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds of each benchmark")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target was missed")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER", help="where to keep the results"
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _run(chosen: list[Benchmark], quick: bool, rounds: int | None) -> Report:
    facts, doubts = machine(), warnings()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="podbot-bench-") as folder:
        setting = Setting(Path(folder), quick, rounds)
        for benchmark in chosen:
            print(f"{benchmark.name}: {benchmark.about} …", file=sys.stderr, flush=True)
            outcomes += benchmark.run(setting)
    return Report(facts, outcomes, doubts)


def _keep(report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latest.json").write_text(json.dumps(report.as_data(), indent=2) + "\n")
    (folder / "latest.md").write_text(report.as_markdown())
    picture = folder / "latest.png"
    picture.unlink(missing_ok=True)
    if not plot.draw(report, picture):
        print("no plot: it needs matplotlib (pip install matplotlib)", file=sys.stderr)
    print(f"kept in {folder}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
