"""What the tests of reviews share: a project with layers and a state folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import workplace


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """The library says nothing, whatever it does."""
    yield
    assert capfd.readouterr() == ("", "")
