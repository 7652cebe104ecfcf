"""A module asks to be two when it is long; one that stays one says why, where it begins."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import podbot

ROOT = Path(podbot.__file__).parent
MOST_LINES = 600
REASON = re.compile(r"\blong\b|\blines\b")


def test_a_long_module_says_why_in_its_first_paragraph() -> None:
    silent = []
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MOST_LINES:
            paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
            if not REASON.search(paragraph):
                silent.append(str(path.relative_to(ROOT)))
    assert silent == [], "make them two, or say in the first paragraph why they are one"
