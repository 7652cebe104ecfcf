"""Who a guest is: 65534 inside wherever that can be had, never root outside."""

from __future__ import annotations

import pytest

from podbot.errors import Kind, LaunchError
from podbot.sandbox.container._identity import EngineKind, choose

USER, OTHER, ROOT = (1000, 100), (1001, 101), (0, 0)
NOBODY = (65534, 65534)
MAPPED = "keep-id:uid=65534,gid=65534"


@pytest.mark.parametrize(
    ("engine", "caller", "owner", "inside", "outside", "userns", "squashed"),
    [
        (EngineKind(True, True, 1000), USER, USER, NOBODY, USER, MAPPED, False),
        (EngineKind(True, True, None), USER, None, NOBODY, USER, MAPPED, False),
        (EngineKind(False, True, 1000), USER, USER, (0, 0), USER, None, False),
        (EngineKind(True, False, 0), USER, USER, USER, USER, "host", False),
        (EngineKind(False, False, 0), USER, OTHER, USER, USER, "host", False),
        (EngineKind(True, False, 0), ROOT, OTHER, OTHER, OTHER, "host", False),
        (EngineKind(True, False, 0), ROOT, ROOT, NOBODY, NOBODY, "host", True),
        (EngineKind(False, False, 0), ROOT, None, NOBODY, NOBODY, "host", True),
    ],
    ids=[
        "rootless", "rootless without a target", "rootless Docker", "root's engine, an own folder",
        "root's engine, another's folder", "root, a user's folder", "root, root's folder",
        "root without a target",
    ],
)  # fmt: skip
def test_the_guest_is_who_can_write_the_workspace(
    engine: EngineKind,
    caller: tuple[int, int],
    owner: tuple[int, int] | None,
    inside: tuple[int, int],
    outside: tuple[int, int],
    userns: str | None,
    squashed: bool,
) -> None:
    found = choose(engine, caller, owner)
    assert (found.inside, found.outside) == (inside, outside)
    assert (found.userns, found.squashed) == (userns, squashed)
    assert found.user == f"{inside[0]}:{inside[1]}"
    assert found.outside[0] != 0
    assert str(inside[0]) in found.by or "root" in found.by


def test_another_users_own_engine_is_refused() -> None:
    with pytest.raises(LaunchError, match="user 1001's own") as caught:
        choose(EngineKind(True, True, 1001), USER, USER)
    assert caught.value.kind is Kind.PERMISSION_DENIED
