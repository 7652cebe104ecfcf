"""docs/prompts.md: its code runs, prints what the page shows, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import podbot.prompt
from podbot.prompt._arguments import MAX_CHARACTERS
from podbot.prompt.overrides_store import MAX_BYTES
from podbot.prompt.result import RENDER_LIMIT
from podbot.prompt.subagents import MAX_DELEGATIONS, WORKERS

PAGE = Path(__file__).parent.parent.parent / "docs" / "prompts.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_shows_what_its_code_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1))
        code = compile("\n" * line + match[1], str(PAGE), "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - our own page

    shown = re.findall(r"(?:^    .*\n|^\n(?=    ))+", BLOCK.sub("", text), re.MULTILINE)
    printed = re.sub(r"^    ", "", "".join(shown), flags=re.MULTILINE)
    assert (
        re.sub(r"\n+", "\n", printed).strip()
        == re.sub(r"\n+", "\n", capsys.readouterr().out).strip()
    )


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text()

    assert f"{MAX_CHARACTERS:,} characters" in text
    assert f"{RENDER_LIMIT:,} characters" in text
    assert f"{MAX_BYTES >> 20} MiB" in text
    assert f"At most {MAX_DELEGATIONS} tasks" in text
    assert WORKERS == 8 and "eight at a time" in text


def test_the_names_the_page_imports_are_public() -> None:
    for names in re.findall(r"from podbot\.prompt import (.+)", PAGE.read_text()):
        assert set(names.split(", ")) <= set(podbot.prompt.__all__)
