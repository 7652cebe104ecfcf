"""Owners: told apart from every other process, and dead only if surely so."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from podbot.engine import About, Component, Facts, labels
from podbot.engine._escapes import KNOWN, is_affected, known_escapes
from podbot.engine.facts import plain_version, read_about
from podbot.engine.labels import Owner, owner_alive, owner_label, owner_state, parse


def test_this_process_is_alive() -> None:
    assert owner_alive(owner_label())
    assert owner_state(owner_label()) == "alive"


def test_a_label_names_this_process_and_no_secret_of_the_machine() -> None:
    owner = parse(owner_label())

    assert owner is not None and owner.pid == os.getpid()
    assert owner == labels.this_process()
    assert labels._read("/etc/machine-id") not in owner_label() or not owner.machine


def test_a_process_that_ended_is_dead() -> None:
    code = "from podbot.engine import owner_label; print(owner_label())"
    label = subprocess.check_output([sys.executable, "-c", code], text=True)

    assert owner_state(label.strip()) == "dead"
    assert not owner_alive(label.strip())


def test_a_process_that_is_not_buried_yet_is_dead() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert labels._started(child) is None
    finally:
        os.waitpid(child, 0)


def test_a_process_that_may_not_be_looked_at_is_nobodys_death(
    here: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /proc shows each user only their own processes."""
    monkeypatch.setattr(labels, "_read_stat", lambda pid: "")
    assert owner_state(here.label()) == "unknown"
    assert owner_state(replace(here, pid=0).label()) == "dead"
    assert owner_state(replace(here, pid=2**22 + 1).label()) == "dead"
    assert owner_state(replace(here, pid=10**30).label()) == "dead"

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert owner_state(here.label()) == "unknown"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Owner:
    owner = Owner("machine", "boot", "4026531836", os.getpid(), labels._started(os.getpid()) or 0)
    monkeypatch.setattr(labels, "this_process", lambda: owner)
    return owner


def test_a_used_again_pid_is_another_process(here: Owner) -> None:
    assert owner_state(replace(here, started=here.started - 1).label()) == "dead"


def test_an_owner_of_an_earlier_boot_is_dead(here: Owner) -> None:
    assert owner_state(replace(here, boot="earlier").label()) == "dead"


def test_what_cannot_be_told_counts_as_alive(here: Owner) -> None:
    for other in (
        replace(here, machine="another"),
        replace(here, machine="another", boot="earlier"),
        replace(here, pid_namespace="1", pid=1),
    ):
        assert owner_state(other.label()) == "unknown"
        assert owner_alive(other.label())


def test_without_an_id_of_the_machine_another_boot_may_be_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Owner("", "boot", "1", os.getpid(), 1)
    monkeypatch.setattr(labels, "this_process", lambda: here)

    assert owner_state(replace(here, boot="other").label()) == "unknown"


@pytest.mark.parametrize(
    "label",
    ["", "x", "1/m/b/n/1", "2/m/b/n/1/1", "1/m//n/1/1", "1/m/b//1/1", "1/m/b/n/x/1", "1/m/b/n/1/-1",
     "1/m/b/n/1/²", "1/m/b/n/1/1/1", "1/" + "m" * 300 + "/b/n/1/1"],
)  # fmt: skip
def test_a_label_that_makes_no_sense_is_nobodys_death(label: str) -> None:
    assert parse(label) is None
    assert owner_alive(label)


def test_a_machine_without_its_files_still_has_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "_read", lambda _: "")

    assert labels.this_process().machine == ""


# Known escapes


def about(**versions: str) -> About:
    facts = Facts(True, "4.3.1", "1.41", False, 1, True)
    parts = tuple(Component(name, version) for name, version in versions.items())
    return replace(read_about(facts, {}, {}), components=parts)


def test_versions_with_known_escapes_are_warned_about_by_name() -> None:
    found = known_escapes(about(podman="4.3.1", runc="1.1.5", conmon="2.1.6"))

    names = {warning.escape.name for warning in found}
    assert {"CVE-2024-21626", "CVE-2025-31133", "CVE-2024-1753"} <= names
    assert "CVE-2019-5736" not in names
    said = next(str(each) for each in found if each.escape.name == "CVE-2024-21626")
    assert said.startswith("runc 1.1.5 may have CVE-2024-21626: ")
    assert "1.1.12" in said and "distribution" in said


def test_current_versions_are_not_warned_about() -> None:
    found = known_escapes(about(podman="5.8.0", runc="1.4.3", crun="1.26", docker="29.6.0"))

    assert found == ()


@pytest.mark.parametrize(
    ("version", "fixed", "affected"),
    [
        ("1.1.11", ("1.1.12",), True),
        ("1.1.12", ("1.1.12",), False),
        ("1.2.0", ("1.1.12",), False),
        ("1.0.0", ("1.1.12",), True),
        ("1.2.7", ("1.2.8", "1.3.3"), True),
        ("1.2.8", ("1.2.8", "1.3.3"), False),
        ("1.3.0", ("1.2.8", "1.3.3"), True),
        ("1.1.15", ("1.2.8", "1.3.3"), True),
        ("1.4.0", ("1.2.8", "1.3.3", "1.4.0-rc3"), False),
        ("1.4.0-rc.2", ("1.2.8", "1.3.3", "1.4.0-rc3"), True),
        ("1.0.0-rc93", ("1.0.0-rc95",), True),
        ("1.0.0-rc95", ("1.0.0-rc95",), False),
        ("1.19", ("1.20",), True),
        ("", ("1.20",), False),
        ("unknown", ("1.20",), False),
    ],
)
def test_a_version_is_compared_within_its_own_line(
    version: str, fixed: tuple[str, ...], affected: bool
) -> None:
    assert is_affected(version, fixed) is affected


def test_the_table_is_made_of_versions_that_can_be_compared() -> None:
    for escape in KNOWN:
        assert escape.name.startswith("CVE-") and escape.what
        for release in escape.fixed:
            assert not is_affected(release, (release,)) and is_affected("0.0.1", (release,))


def test_a_version_is_found_in_what_a_program_says_of_itself() -> None:
    assert plain_version("runc version 1.1.5+ds1\ncommit: x") == "1.1.5"
    assert plain_version("Docker/27.5.1 (linux)") == "27.5.1"
    assert plain_version("1.0.0-rc95") == "1.0.0-rc95"
    assert plain_version("none") == ""
