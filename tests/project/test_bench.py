"""The benchmark harness works; how fast anything is, is not asked here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # `bench` is not installed with podbot

from bench import catalogue, plot, setting
from bench.__main__ import main
from bench.measure import Pace, Side, Spread, race
from bench.report import Report
from bench.rows import Absent, Row, Target

LIGHT = ("exec", "files", "kernel", "version")


def test_sides_of_a_race_take_turns_and_the_warm_up_is_not_counted() -> None:
    calls: list[str] = []
    sides = {
        "ours": Side(lambda: calls.append("ours"), before=lambda: calls.append("ready")),
        "rival": Side(lambda: calls.append("rival")),
    }
    spread = race(sides, Pace(rounds=2, settle=0, warm_up=1))
    assert calls == ["rival", "ready", "ours", "ready", "ours", "rival", "rival", "ready", "ours"]
    assert set(spread) == {"ours", "rival"}


def test_the_slow_end_of_a_rate_is_the_smaller_number() -> None:
    spread = Spread.of([1.0, 2.0, 4.0])
    assert spread.median == 2.0
    assert spread.p90 > spread.median
    assert spread.rate(8).p90 < spread.rate(8).median == 4.0


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (Target(1.4), 1.4, "ok"),
        (Target(1.4), 1.5, "MISSED"),
        (Target(0.5, at_least=True), 0.6, "ok"),
        (Target(0.5, at_least=True), 0.4, "MISSED"),
        (Target(0), 0, "ok"),
        (Target(0), 1, "MISSED"),
        (None, 9, "info"),
    ],
)
def test_a_row_is_judged_by_its_target(target: Target | None, value: float, verdict: str) -> None:
    row = Row("some", "thing", Spread(value * 2, value * 3), "ms", Spread(2, 2), "rival", target)
    assert row.value == value
    assert row.verdict == verdict
    if target is not None:
        assert (target.used(value) <= 1) == (verdict == "ok")


def test_a_missing_rival_is_said_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    for benchmark in catalogue.ALL:
        if benchmark.needs == "bwrap":
            (outcome,) = benchmark.run(setting.Setting(tmp_path))
            assert isinstance(outcome, Absent)
            assert outcome.verdict == "skipped"
            assert "bubblewrap" in outcome.reason
            assert outcome.reason in Report({}, [outcome]).as_table()


def test_a_benchmark_that_fails_does_not_stop_the_run(tmp_path: Path) -> None:
    def broken(_: setting.Setting) -> list[Row]:
        """Fail."""
        raise OSError("no luck")

    (outcome,) = catalogue.Benchmark("broken", broken).run(setting.Setting(tmp_path))
    assert outcome == Absent("broken", "Fail", "OSError: no luck", "FAILED")
    assert Report({}, [outcome]).missed == 1


def test_listing_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [benchmark.name for benchmark in catalogue.ALL]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--only", "speed"])
    assert error.value.code == 2
    assert "speed" in capsys.readouterr().err


@pytest.mark.parametrize("name", LIGHT)
def test_one_round_of_a_benchmark_gives_rows_and_keeps_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name != "version" and sys.executable.startswith(("/tmp/", "/var/tmp/")):
        pytest.skip("the interpreter lies where a sandbox cannot see it")
    code = main(["--only", name, "--rounds", "1", "--json", "--results", str(tmp_path)])
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    kept = json.loads((tmp_path / "latest.json").read_text())
    assert printed == kept
    assert {"kernel", "cpus", "python", "root"} <= set(kept["machine"])
    assert kept["rows"]
    for row in kept["rows"]:
        assert row["verdict"] in ("ok", "MISSED", "info"), row
        assert row["ours"]["median"] > 0
    assert kept["rows"][0]["what"] in (tmp_path / "latest.md").read_text()


def test_the_plot_is_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = Row("some", "thing", Spread(2, 3), "ms", Spread(2, 2), "rival", Target(1.4))
    report = Report(setting.machine(), [row])
    assert plot.draw(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not plot.draw(Report(setting.machine(), []), tmp_path / "none.png")
