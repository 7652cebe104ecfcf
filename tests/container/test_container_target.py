"""The folder a container works on: what is refused, and what must be copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podbot.errors import Kind, LaunchError
from podbot.sandbox import Policy
from podbot.sandbox.container import _target as targets
from podbot.sandbox.container._target import Overlaying, Target
from podbot.sandbox.layers import mounts

ABLE = Overlaying(None)


def test_a_target_is_found_with_its_owner(target: Path) -> None:
    found = targets.checked(target, Policy())
    assert found.path == str(target)
    assert found.owner == (os.geteuid(), target.stat().st_gid)
    assert found.hidden_inside == ()


@pytest.mark.parametrize("path", ["/", "/proc", "/sys/kernel", "/dev", "/run"])
def test_the_machines_own_folders_are_no_targets(path: str) -> None:
    with pytest.raises(LaunchError, match="cannot be a target") as caught:
        targets.checked(path, Policy())
    assert caught.value.kind is Kind.TARGET_REFUSED


def test_a_target_may_not_hold_the_layers(own_layers: Path) -> None:
    with pytest.raises(LaunchError, match="layers lie below"):
        targets.checked(own_layers, Policy())


def test_a_target_in_a_hidden_place_is_refused(target: Path) -> None:
    with pytest.raises(LaunchError, match="which the policy hides") as caught:
        targets.checked(target / "src", Policy(hidden=(str(target),)))
    assert "readable" in (caught.value.remedy or "")


def test_what_podbot_knows_is_hidden_whatever_the_policy(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODBOT_STATE", str(target / "state"))
    assert targets.checked(target, Policy(hidden=())).hidden_inside == (str(target / "state"),)


def test_a_secret_is_hidden_where_a_link_leads_to(target: Path, tmp_path: Path) -> None:
    """As where ~/.ssh is a link into the folder that is worked on."""
    (target / "keys").mkdir()
    (tmp_path / "link").symlink_to(target / "keys")
    found = targets.checked(target, Policy(hidden=(str(tmp_path / "link"),)))
    assert found.hidden_inside == (str(target / "keys"),)
    with pytest.raises(LaunchError, match="cannot be bound"):
        targets.refuse_secrets(found)


@pytest.mark.parametrize(
    ("found", "able", "reason"),
    [
        (Target("/a", (1, 1), ()), Overlaying("it cannot"), "it cannot"),
        (Target("/a:b", (1, 1), ()), ABLE, "colon"),
        (Target("/a,b", (1, 1), ()), ABLE, "comma"),
        (Target("/a", (1, 1), ("/a/secret", "/b")), ABLE, "hides /a/secret"),
    ],
)
def test_a_folder_is_copied_when_an_overlay_would_not_do(
    found: Target, able: Overlaying, reason: str
) -> None:
    assert reason in str(targets.why_copied(found, able))


def test_a_folder_with_a_mount_in_it_is_copied(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Target(str(target), (1, 1), ())
    assert targets.why_copied(found, ABLE) is None
    monkeypatch.setattr(mounts, "any_below", lambda folder: f"{folder}/mounted")
    assert "is a mount below" in str(targets.why_copied(found, ABLE))


def test_a_folder_with_a_secret_cannot_be_bound(target: Path) -> None:
    secret = target / "secret"
    found = Target(str(target), (1, 1), (str(secret),))
    targets.refuse_secrets(found)  # it does not exist
    secret.touch()
    with pytest.raises(LaunchError, match="cannot be bound"):
        targets.refuse_secrets(found)
