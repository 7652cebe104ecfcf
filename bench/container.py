"""Containers: a command in one that runs, a new one, one from stock, and many at once."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import podbot.sandbox
from bench.measure import Side, Spread, race
from bench.rows import Absent, Outcome, Row, Target
from bench.setting import Setting
from podbot.engine import DEFAULT_IMAGE, Engine, connect
from podbot.errors import PodbotError
from podbot.sandbox import ContainerSandbox

IMAGE_VARIABLE = "PODBOT_BENCH_IMAGE"
MANY = 50
FILES = 2000
SETTLE = 0.05
# What podman exec started goes on tidying up for a while after it has ended.
AFTERMATH = 0.3
# After such a pause a processor must be woken first, which would be most of what is measured.
SEVERAL = 20


def container(setting: Setting) -> list[Outcome]:
    """A command, a start and a claim beside podman's, and 50 containers at once."""
    image = os.environ.get(IMAGE_VARIABLE, DEFAULT_IMAGE)
    try:
        with connect() as engine:
            if not engine.images.exists(image):
                return [_skipped(f"there is no image {image}; make it with `podbot image build`")]
            options = {"engine": engine, "image": image}
            return [
                *_commands(setting, options),
                *_starts(setting, options),
                *_roots(setting, options),
                *_many(setting, options),
            ]
    except PodbotError as error:
        return [_skipped(f"no engine can be used here: {error.message}")]


def _skipped(reason: str) -> Absent:
    return Absent("container", (container.__doc__ or "").rstrip("."), reason, "skipped")


def _opened(options: dict[str, object]) -> ContainerSandbox:
    made = podbot.sandbox.open("container", **options)
    assert isinstance(made, ContainerSandbox)
    return made


def _bare() -> None:
    subprocess.run(["true"], capture_output=True, check=True)


def _commands(setting: Setting, options: dict[str, object]) -> list[Row]:
    with _opened(options) as sandbox:
        assert sandbox.container is not None
        name = sandbox.container.name
        sides = {
            "ours": Side(lambda: sandbox.exec(["true"])),
            "bare": Side(_bare),
        }
        spread = race(sides, setting.pace(300))

        def several() -> None:
            for _ in range(SEVERAL):
                sandbox.exec(["true"])

        slow = {"ours": Side(several), "podman": Side(_podman("exec", name, "true"))}
        beside = race(slow, setting.pace(15, AFTERMATH, warm_up=1))
        each = Spread(beside["ours"].median / SEVERAL, beside["ours"].p90 / SEVERAL)
    return [
        Row("container", "exec true in a container that runs", spread["ours"], "ms",
            spread["bare"], "bare subprocess.run", Target(1.6)),
        Row("container", "podman exec, beside that", beside["podman"], "ms",
            each, f"podbot, {SEVERAL} in a row", Target(80, at_least=True)),
    ]  # fmt: skip


def _starts(setting: Setting, options: dict[str, object]) -> list[Row]:
    """From nothing, and from stock, to the first result; ending it is off the clock."""
    left: list[podbot.sandbox.Sandbox] = []

    def tidy() -> None:
        while left:
            left.pop().close()

    def start() -> None:
        left.append(_opened(options))
        left[-1].exec(["true"]).check()

    with podbot.sandbox.Pool("container", size=2, **options) as pool:

        def claim() -> None:
            left.append(pool.claim(environment={"WHO": "bench"}))
            left[-1].exec(["true"]).check()

        def stocked() -> None:
            tidy()
            pool.wait_full()

        sides = {
            "start": Side(start, before=stocked),
            "podman": Side(_podman("run", "--rm", str(options["image"]), "true"), before=stocked),
            "claim": Side(claim, before=stocked),
            "bare": Side(_bare, before=stocked),
        }
        spread = race(sides, setting.pace(20, SETTLE, warm_up=1))
        tidy()
    return [
        Row("container", "a new container to its first result", spread["start"], "ms",
            spread["podman"], "podman run --rm", Target(1.1)),
        Row("container", "a claim to its first result", spread["claim"], "ms",
            spread["bare"], "bare subprocess.run", Target(10)),
    ]  # fmt: skip


def _roots(setting: Setting, options: dict[str, object]) -> list[Outcome]:
    """A container over a folder of root's, who is nobody inside, beside one over a user's."""
    about = f"a container over root's folder of {FILES:,} files"
    engine = options["engine"]
    assert isinstance(engine, Engine)
    if os.geteuid() != 0 or engine.facts.rootless:
        return [Absent("container", about, "only for root, with an engine of root's", "skipped")]
    left: list[podbot.sandbox.Sandbox] = []

    def tidy() -> None:
        while left:
            left.pop().close()

    def over(folder: str) -> Callable[[], None]:
        def start() -> None:
            left.append(_opened({**options, "target": folder, "discard": True}))
            left[-1].exec(["true"]).check()

        return start

    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)  # noqa: S103 - users must get through
        folders = {"root": f"{name}/root", "user": f"{name}/user"}
        for number in range(FILES):
            for folder in folders.values():
                place = f"{folder}/{number % 40}"
                os.makedirs(place, exist_ok=True)
                with open(f"{place}/{number}", "w") as file:
                    file.write("x" * (number % 9000))
        subprocess.run(["chown", "-R", "1234:1234", folders["user"]], check=True)
        sides = {who: Side(over(folder), before=tidy) for who, folder in folders.items()}
        spread = race(sides, setting.pace(20, SETTLE, warm_up=1))
        tidy()
    return [
        Row("container", about, spread["root"], "ms", spread["user"], "the same of a user's",
            Target(1.3)),
    ]  # fmt: skip


def _many(setting: Setting, options: dict[str, object]) -> list[Row]:
    count = MANY // 5 if setting.quick else MANY

    def one(_: int) -> ContainerSandbox | None:
        try:
            sandbox = _opened(options)
            sandbox.exec(["true"]).check()
        except PodbotError:
            return None
        return sandbox

    with ThreadPoolExecutor(count) as threads:
        live = [sandbox for sandbox in threads.map(one, range(count)) if sandbox is not None]
        answers = list(threads.map(lambda sandbox: sandbox.exec(["true"]).ok, live))
        list(threads.map(lambda sandbox: sandbox.close(), live))
    failed = float(count - sum(answers))
    what = f"{count} containers at once: failures"
    return [Row("container", what, Spread(failed, failed), "", target=Target(0))]


def _podman(*words: str) -> Callable[[], None]:
    def run() -> None:
        subprocess.run(["podman", *words], capture_output=True, check=True)

    return run
