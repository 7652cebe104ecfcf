"""A stock of containers; each claim brings its own variables and its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_engine import SmallEngine

from podbot.errors import Kind, SandboxError
from podbot.sandbox import ContainerSandbox, Pool


def test_a_claim_brings_its_own(engine: SmallEngine, target: Path) -> None:
    with Pool("container", size=2, image="image", engine=engine) as pool:
        assert pool.wait_full(60)
        first = pool.claim(environment={"WHO": "first"}, target=target)
        with first, pool.claim(environment={"WHO": "second"}) as second:
            assert isinstance(first, ContainerSandbox)
            listed = ["first", "a.txt", "link", "src"]
            assert first.exec(["sh", "-c", "echo $WHO; ls"]).stdout.split() == listed
            assert second.exec(["sh", "-c", "echo $WHO; ls"]).stdout == "second\n"
            first.write("new", "x")
        layer = first.layer
        assert layer is not None and layer.targets == (str(target),)
        layer.discard()
    assert not (target / "new").exists()


def test_a_claim_that_cannot_be_met_is_closed(engine: SmallEngine, target: Path) -> None:
    with Pool("container", size=1, image="image", engine=engine) as pool:
        with pytest.raises(SandboxError) as caught:
            pool.claim(target=target / "missing")
        assert caught.value.kind is Kind.TARGET_MISSING
        with pytest.raises(SandboxError):
            pool.claim(environment={"": "x"})


def test_other_backends_take_variables_and_no_folder(target: Path) -> None:
    with Pool("local", size=1) as pool:
        with pool.claim(environment={"WHO": "me"}) as sandbox:
            assert sandbox.exec(["sh", "-c", "echo $WHO"]).stdout == "me\n"
        with pytest.raises(SandboxError) as caught:
            pool.claim(target=target)
        assert caught.value.kind is Kind.UNSUPPORTED
