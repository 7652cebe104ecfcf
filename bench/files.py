"""Reading and writing files of a live sandbox."""

from __future__ import annotations

import os

import podbot.sandbox
from bench.commands import bare
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting

SIZE = 4096


def write_and_read(setting: Setting) -> list[Row]:
    """Writing a 4 KiB file and reading it back."""
    data = os.urandom(SIZE)
    target = setting.project("files")
    plain_path = os.path.join(target, "plain")

    def plain() -> None:
        with open(plain_path, "wb") as file:
            file.write(data)
        with open(plain_path, "rb") as file:
            assert file.read() == data

    with podbot.sandbox.open("overlay", target=target, discard=True) as sandbox:

        def ours() -> None:
            sandbox.write("ours", data)
            assert sandbox.read("ours") == data

        sides = {"ours": Side(ours), "plain": Side(plain), "bare": Side(bare)}
        spread = race(sides, setting.pace(300))
    what = "write + read 4 KiB, overlay"
    return [
        Row("files", what, spread["ours"], "ms", spread["bare"], "subprocess.run", Target(0.7)),
        Row("files", what, spread["ours"], "ms", spread["plain"], "plain open/write/read"),
    ]
