"""docs/sessions.md is whole and true: it names what is public, and its code runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from podbot.runtime import events, logging, session

PAGE = Path(__file__).parent.parent.parent / "docs" / "sessions.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_code_of_the_page_runs_from_top_to_bottom() -> None:
    text = PAGE.read_text()
    namespace: dict[str, object] = {"__name__": "page"}
    blocks = list(BLOCK.finditer(text))
    for block in blocks:
        line = text.count("\n", 0, block.start(1))  # a traceback names the page's own line
        code = compile("\n" * line + block[1], str(PAGE), "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - our own page

    assert len(blocks) >= 6


def public_names() -> set[str]:
    names = set(session.__all__)
    for module in (events, logging):
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if own and not name.startswith("_"):
                names.add(name)
    return names


@pytest.mark.parametrize("name", sorted(public_names()))
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE.read_text())


@pytest.mark.parametrize(
    "cls",
    [
        session.Attempt,
        session.Session,
        session.SessionMutation,
        session.Slice,
        session.SliceMutation,
        session.SliceQuery,
        session.Snapshot,
        events.InProcessEventBus,
        events.PublishResult,
        events.ToolInvoked,
        logging.StructuredLogger,
    ],
)
def test_every_public_verb_is_on_the_page(cls: type) -> None:
    text = PAGE.read_text()
    for name, _ in inspect.getmembers(cls):
        if name in vars(cls) and not name.startswith("_"):
            assert re.search(rf"\b{name}\b", text), name
