"""Runs the example at a real terminal and draws what it shows as docs/run.svg.

    python docs/make_screenshot.py

The picture in the README is this file's output and nothing else. The renderer knows just the
colours the example uses; a code it does not know is an error, so that nothing is drawn wrongly.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "review_an_agent.py"
PICTURE = HERE / "run.svg"

COLUMNS = 92
CHARACTER, LINE, MARGIN, BAR = 8.0, 18.0, 16.0, 28.0
BACKGROUND, TEXT = "#16181d", "#d7dae0"
STYLES = {
    "0": "",
    "1": 'font-weight="bold" fill="#ffffff"',
    "2": 'fill="#868d9b"',
    "31": 'fill="#f0788c"',
    "32": 'fill="#8fd18a"',
    "33": 'fill="#e6c07b"',
    "36": 'fill="#6cc3d5"',
}
SGR = re.compile(r"\x1b\[([0-9]*)m")


def record(command: list[str]) -> str:
    """What a command shows at a terminal; it must succeed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    shown = b""
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # how a terminal says that the other end is gone
    os.close(ours)
    text = shown.decode("utf-8").replace("\r\n", "\n")
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{text}")
    return text


def render(text: str) -> str:
    """Terminal output as a picture of a terminal."""
    lines = text.rstrip("\n").split("\n")
    width = COLUMNS * CHARACTER + 2 * MARGIN
    height = BAR + len(lines) * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="the output of make run">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
    ]
    for index, fill in enumerate(("#f0788c", "#e6c07b", "#8fd18a")):
        parts.append(f'<circle cx="{20 + 18 * index}" cy="18" r="5.5" fill="{fill}"/>')
    parts.append(
        f'<g font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" '
        f'font-size="13" fill="{TEXT}" xml:space="preserve">'
    )
    for index, line in enumerate(lines):
        y = BAR + MARGIN + (index + 0.8) * LINE
        parts.append(f'<text x="{MARGIN:g}" y="{y:g}">{_spans(line)}</text>')
    parts += ["</g>", "</svg>"]
    return "\n".join(parts) + "\n"


def _spans(line: str) -> str:
    """One line; each run of one colour starts at its own column, whatever the font's width."""
    if len(SGR.sub("", line)) > COLUMNS:
        raise ValueError(f"a line that does not fit: {line!r}")
    spans, column, style = [], 0, ""
    for index, piece in enumerate(SGR.split(line)):
        if index % 2:
            style = STYLES[piece or "0"]
        elif piece:
            if "\x1b" in piece:
                raise ValueError(f"an escape sequence that is no colour: {piece!r}")
            x = MARGIN + column * CHARACTER
            length = len(piece) * CHARACTER
            spans.append(
                f'<tspan x="{x:g}" textLength="{length:g}" {style}>{escape(piece)}</tspan>'
            )
            column += len(piece)
    return "".join(spans)


def main() -> None:
    """Record and draw."""
    prompt = "\x1b[2m$\x1b[0m \x1b[1mmake run\x1b[0m\n"
    PICTURE.write_text(render(prompt + record([sys.executable, str(EXAMPLE)])), "utf-8")
    print(f"{PICTURE} drawn")


if __name__ == "__main__":
    main()
