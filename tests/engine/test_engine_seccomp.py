"""The profile that engines are given says what podbot's table says, and no more gets through."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from podbot import system_calls
from podbot.engine import TOOLS, ContainerSpec, Facts, Profile, _seccomp
from podbot.engine._resolved import compare, filters
from podbot.engine._seccomp import Filter
from podbot.errors import ContainerError, Kind
from podbot.frozen import replace
from podbot.system_calls import AnyOf, OneOf, Unless

PODMAN = Facts(True, "4.3.1", "1.41", False, 2, True)
REMOTE = replace(PODMAN, local=False)
DOCKER = Facts(False, "27.5.1", "1.44", False, 2, True)
ALLOWED = 0


def verdicts(which: Filter, name: str, *args: int) -> set[int]:
    """Every answer that a profile has for a call, as an engine's library reads it: one, or none."""
    found = cast("dict[str, Any]", json.loads(_seccomp.text(which)))
    answers = set()
    for rule in found["syscalls"]:
        conditions = rule.get("args", [])
        assert all(each["op"] == "SCMP_CMP_MASKED_EQ" for each in conditions)
        if name in rule["names"] and all(
            (args[each["index"]] if each["index"] < len(args) else 0) & each["value"]
            == each["valueTwo"]
            for each in conditions
        ):
            answers.add(ALLOWED if rule["action"] == "SCMP_ACT_ALLOW" else rule["errnoRet"])
    return answers or {found["defaultErrnoRet"]}


@pytest.mark.parametrize("name", sorted(system_calls.REFUSED))
def test_what_the_table_refuses_fails_as_on_the_overlay(name: str) -> None:
    assert verdicts("podbot", name) == {errno.EPERM}


def test_calls_whose_flags_lie_in_memory_do_not_exist() -> None:
    for name in system_calls.ABSENT:
        assert verdicts("podbot", name) == verdicts("nested", name) == {errno.ENOSYS}


def test_what_nobody_listed_does_not_exist() -> None:
    assert verdicts("podbot", "a_call_of_the_next_kernel") == {errno.ENOSYS}
    assert verdicts("podbot", "openat") == verdicts("podbot", "execve") == {ALLOWED}


def tries(rule: system_calls.Rule) -> list[tuple[int, tuple[int, ...]]]:
    """Arguments at the edges of a rule, and what the table says of each."""
    found: list[tuple[int, tuple[int, ...]]] = []
    if isinstance(rule, AnyOf):
        for at in range(32):
            bit = 1 << at
            found.append((rule.errno if rule.bits & bit else ALLOWED, (bit,)))
            found.append((rule.errno, (bit | rule.bits,)))
    elif isinstance(rule, OneOf):
        before = (0,) * rule.argument
        for value in rule.values:
            found.append((rule.errno, (*before, value)))
            # The kernel cuts it down to 32 bits, and so must whoever compares it.
            found.append((rule.errno, (*before, value | 1 << 32)))
            for near in (value - 1, value + 1, value | 1 << 31):
                found.append((ALLOWED, (*before, near)))
    else:
        for way in rule.ways:
            fits = [0] * 6
            for argument, _, value in way:
                fits[argument] = value
            found.append((ALLOWED, tuple(fits)))
            found.append((ALLOWED, (fits[0] | 1 << 32, *fits[1:])))
        if all(mask == system_calls.WHOLE for way in rule.ways for _, mask, _ in way):
            found.append((rule.errno, (0x7FFF,)))
    return found


@pytest.mark.parametrize("name", sorted(system_calls.JUDGED))
def test_what_is_judged_by_arguments_is_judged_as_on_the_overlay(name: str) -> None:
    for expected, args in tries(system_calls.JUDGED[name][1]):
        assert verdicts("podbot", name, *args) == {expected}, args


def test_a_way_of_several_conditions_refuses_what_parts_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = system_calls.WHOLE
    rule = Unless((((0, whole, 2),), ((0, whole, 16), (2, whole, 0)), ((1, 0xF0, 0x10),)), 97)
    monkeypatch.setitem(system_calls.JUDGED, "socket", ((41, 198), Unless(rule.ways[:2], 97)))
    _seccomp.text.cache_clear()
    try:
        assert verdicts("podbot", "socket", 2, 1, 9) == {ALLOWED}
        assert verdicts("podbot", "socket", 16, 3, 0) == {ALLOWED}
        assert verdicts("podbot", "socket", 16, 3, 9) == {97}
        assert verdicts("podbot", "socket", 40) == {97}
        monkeypatch.setitem(system_calls.JUDGED, "socket", ((41, 198), rule))
        _seccomp.text.cache_clear()
        assert verdicts("podbot", "socket", 5, 0x1F) == {ALLOWED}
        assert verdicts("podbot", "socket", 5, 0x2F) == {errno.ENOSYS}
    finally:
        _seccomp.text.cache_clear()


def test_a_container_inside_another_needs_namespaces_and_mounts_and_gets_no_more() -> None:
    for name in _seccomp.NESTING:
        assert verdicts("nested", name, 0x10000000) == {ALLOWED}, name
        assert verdicts("podbot", name, 0x10000000) == {errno.EPERM}, name
    assert verdicts("nested", "keyctl") == {errno.ENOSYS}
    for name in ("bpf", "userfaultfd", "io_uring_setup", "kexec_load", "init_module"):
        assert verdicts("nested", name) == {errno.EPERM}, name
    assert verdicts("nested", "socket", 40) == {errno.EAFNOSUPPORT}
    netlink, netfilter = 16, 12
    assert verdicts("nested", "socket", netlink, 3, netfilter) == {ALLOWED}
    assert verdicts("podbot", "socket", netlink, 3, netfilter) == {errno.EAFNOSUPPORT}


def test_only_a_container_that_holds_others_has_all_of_netlink() -> None:
    netlink, netfilter = 16, 12
    for name in ("socket", "socketpair"):
        assert verdicts("podbot", name, netlink, 3, 0) == {ALLOWED}
        assert verdicts("podbot", name, netlink, 3, netfilter) == {errno.EAFNOSUPPORT}
        assert verdicts("nested", name, netlink, 3, netfilter) == {ALLOWED}


def test_nothing_gets_through_that_an_engine_itself_refuses() -> None:
    """Podman's own profile, where it is installed, for a container without capabilities."""
    own = Path("/usr/share/containers/seccomp.json")
    if not own.exists():
        pytest.skip(f"{own} is not installed")
    refused = {
        name
        for rule in json.loads(own.read_text())["syscalls"]
        if rule["action"] == "SCMP_ACT_ERRNO" and not rule.get("args")
        for name in rule["names"]
    }
    let_through = {
        name
        for rule in cast("list[dict[str, Any]]", _seccomp.document("podbot")["syscalls"])
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    assert refused
    assert let_through & refused == set()


# What an engine is told


def profile(**given: Any) -> Profile:
    return replace(TOOLS, **given)


def test_docker_is_given_the_profile_and_podman_a_file_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PODBOT_STATE", str(tmp_path))
    assert _seccomp.given(TOOLS, DOCKER) == _seccomp.text("podbot")
    assert _seccomp.given(TOOLS, replace(DOCKER, local=False)) == _seccomp.text("podbot")

    file = Path(_seccomp.given(TOOLS, PODMAN) or "")

    assert file.read_text() == _seccomp.text("podbot")
    file.write_text("damaged, or another's")
    assert _seccomp.given(TOOLS, PODMAN) == str(file)
    assert file.read_text() == _seccomp.text("podbot")
    assert _seccomp.given(profile(seccomp="nested"), PODMAN) != str(file)
    assert len(list(file.parent.iterdir())) == 2  # no draft stays


def test_a_podman_elsewhere_is_refused_unless_its_own_filter_will_do() -> None:
    with pytest.raises(ContainerError) as caught:
        _seccomp.given(TOOLS, REMOTE)
    assert caught.value.kind is Kind.UNSUPPORTED
    assert "another machine" in caught.value.message
    assert 'seccomp="engine"' in (caught.value.remedy or "")
    assert _seccomp.given(profile(seccomp="default"), REMOTE) is None
    assert _seccomp.given(profile(seccomp="unconfined"), REMOTE) == "unconfined"
    assert _seccomp.given(Profile("x", privileged=True, seccomp="podbot"), REMOTE) is None


def test_a_profile_that_cannot_be_kept_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PODBOT_STATE", str(tmp_path / "file"))
    with pytest.raises(ContainerError) as caught:
        _seccomp.given(TOOLS, PODMAN)
    assert caught.value.kind is Kind.CREATE_FAILED
    assert caught.value.remedy


# What came of it


def written(tmp_path: Path, seccomp: object) -> dict[str, object]:
    """What Podman says of a container that was started, with what it wrote for the runtime."""
    place = tmp_path / "config.json"
    place.write_text(json.dumps({"linux": {"seccomp": seccomp} if seccomp else {}}))
    return {"OCIConfigPath": str(place)}


def as_podman_writes(which: Filter, **change: object) -> dict[str, object]:
    found = cast("dict[str, Any]", _seccomp.document(which))
    del found["archMap"]
    for rule in found["syscalls"]:
        for each in rule.get("args", []):
            if not each["valueTwo"]:
                del each["valueTwo"]
    return {**found, "architectures": ["SCMP_ARCH_X86_64"], **change}


def found_by(details: Mapping[str, object], wanted: Profile = TOOLS) -> list[str]:
    return [str(each) for each in filters(wanted, PODMAN, dict(details))]


def test_the_filter_that_podman_wrote_down_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    assert found_by(written(tmp_path, as_podman_writes("podbot"))) == []
    assert found_by(written(tmp_path, as_podman_writes("nested")), profile(seccomp="nested")) == []
    unconfined = profile(seccomp="unconfined")
    assert found_by(written(tmp_path, None), unconfined) == []
    assert found_by({"OCIConfigPath": str(tmp_path / "nowhere")}) == []  # not ours to read


@pytest.mark.parametrize(
    ("seccomp", "said"),
    [
        (None, "wanted on, got off"),
        (as_podman_writes("podbot", defaultAction="SCMP_ACT_ALLOW"), "calls that nobody listed"),
        (as_podman_writes("podbot", defaultAction="SCMP_ACT_LOG"), "calls that nobody listed"),
        (
            as_podman_writes("podbot", architectures=["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]),
            "calls of other machines",
        ),
        (as_podman_writes("nested"), "also lets through chroot, clone, fsconfig"),
        (as_podman_writes("podbot", syscalls=5), "what cannot be read"),
        ({"defaultAction": []}, "calls that nobody listed"),
    ],
)
def test_a_wider_filter_than_asked_for_is_found_out(
    tmp_path: Path, seccomp: object, said: str
) -> None:
    (found,) = found_by(written(tmp_path, seccomp))
    assert said in found


def test_docker_tells_which_filter_it_applies() -> None:
    def differences(*options: str) -> list[str]:
        details = {"HostConfig": {"SecurityOpt": ["no-new-privileges", *options]}}
        return [
            str(each)
            for each in compare(ContainerSpec("x"), DOCKER, details).differences
            if each.what == "seccomp"
        ]

    assert differences("seccomp=" + _seccomp.text("podbot")) == []
    assert differences() == ["seccomp: wanted podbot's filter, got none"]
    assert differences("seccomp={}") == ["seccomp: wanted podbot's filter, got another one"]
    assert len(differences("seccomp=unconfined")) == 2
