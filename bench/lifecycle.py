"""Making a sandbox, using it once and ending it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import podbot.sandbox
from bench.measure import Side, Spread, race
from bench.rows import Row, Target
from bench.setting import Setting

BWRAP = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
RIVAL = "bwrap --unshare-all"
# The kernel takes namespaces down in its own time, some tens of milliseconds after the last
# process in them; less of a pause and each side would pay for the other.
SETTLE = 0.1
BURST = 20


def bubblewrap() -> None:
    """A bubblewrap sandbox from start to end."""
    subprocess.run([*BWRAP, "true"], check=True)


def create(target: str) -> Callable[[], None]:
    """An overlay sandbox from start to end, with every protection on."""

    def run() -> None:
        with podbot.sandbox.open("overlay", target=target, discard=True) as sandbox:
            sandbox.exec(["true"]).check()

    return run


def create_once(setting: Setting) -> list[Row]:
    """Create + true + close, alone and from a warm spare."""
    target = setting.project("lifecycle")
    with podbot.sandbox.Pool("overlay", size=2, target=target, discard=True) as pool:

        def claim() -> None:
            with pool.claim() as sandbox:
                sandbox.exec(["true"]).check()

        sides = {
            "overlay": Side(create(target)),
            "spare": Side(claim, before=pool.wait_full),
            "bwrap": Side(bubblewrap),
        }
        spread = race(sides, setting.pace(60, SETTLE))
    rival = spread["bwrap"]
    return [
        Row("create", "create + true + close, overlay", spread["overlay"], "ms", rival, RIVAL,
            Target(1.2)),
        Row("create", "the same, from a warm spare", spread["spare"], "ms", rival, RIVAL,
            Target(0.5)),
    ]  # fmt: skip


def create_many(setting: Setting) -> list[Row]:
    """Many create + true + close without a pause: nothing can be put off till later."""
    run = create(setting.project("burst"))

    def burst(one: Callable[[], None]) -> Callable[[], None]:
        def many() -> None:
            for _ in range(BURST):
                one()

        return many

    sides = {"overlay": Side(burst(run)), "bwrap": Side(burst(bubblewrap))}
    spread = race(sides, setting.pace(10, 5 * SETTLE, warm_up=1))
    ours, rival = (_each(spread[name]) for name in ("overlay", "bwrap"))
    return [
        Row("burst", f"create + true + close, {BURST} in a row, each", ours, "ms", rival, RIVAL)
    ]


def _each(spread: Spread) -> Spread:
    return Spread(spread.median / BURST, spread.p90 / BURST)
