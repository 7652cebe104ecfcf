"""A layer folder that lies in what sandboxes overlay: refused by name, and the doctor agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from inside import fill, new_folder, removed, until

from podbot.errors import Kind, LaunchError
from podbot.sandbox import Policy, layers
from podbot.sandbox.layers import mounts
from podbot.sandbox.overlay.launcher import OverlaySandbox
from podbot.sandbox.probe import Finding, probe


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of one's own, without podbot's records beside it."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PODBOT_STATE", str(folder / "state"))
    return folder


@pytest.fixture
def project() -> Iterator[Path]:
    """A target outside of the home."""
    path = fill(new_folder())
    yield path
    assert until(lambda: removed(path))


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that is no sandbox's own as /var/tmp is: in the user's real home."""
    path = Path(mkdtemp(prefix="podbot-test-", dir=Path.home().resolve()))
    yield path
    assert until(lambda: removed(path))


def refusal(target: Path, policy: Policy | None = None) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        OverlaySandbox(target, discard=True, policy=policy)
    return caught.value


def overlay_finding() -> Finding:
    return next(finding for finding in probe() if finding.name == "overlay")


@pytest.mark.parametrize("name", ["layers", ".local/share/podbot-layers"])
def test_layers_in_the_home_are_refused_by_name_and_the_doctor_says_so(
    home: Path, project: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(home / name))

    before = overlay_finding()  # while the folder is not there yet
    error = refusal(project)
    after = overlay_finding()

    assert error.kind is Kind.LAYER_FAILED
    assert error.message.startswith(f"PODBOT_LAYERS={home / name} lies in your home")
    assert "outside of the home" in (error.remedy or "")
    assert layers.found() == []
    for finding in (before, after):
        assert (finding.state, finding.required) == ("missing", True)
        assert f"PODBOT_LAYERS={home / name} lies in {home}" in finding.detail
        assert f"outside of {home}," in str(finding.fix)


def test_a_link_out_of_the_home_is_as_good_as_what_it_leads_to(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = home / "link"
    away.symlink_to(project)
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(away / "layers"))
    (home / "work").mkdir()
    assert overlay_finding().state == "found"
    with OverlaySandbox(home / "work", discard=True) as sandbox:
        sandbox.write("new", b"x")
        assert sandbox.exec(["sh", "-c", "echo y >~/cache && cat ~/cache new"]).stdout == "y\nx"
    assert not (home / "cache").exists()


def test_layers_beside_the_home_work_and_the_doctor_says_so(
    home: Path, project: Path, own_layers: Path
) -> None:
    assert overlay_finding().state == "found"
    with OverlaySandbox(project, discard=True) as sandbox:
        assert sandbox.exec(["sh", "-c", "echo y >~/cache"]).ok
    assert not (home / "cache").exists()


def test_layers_beside_the_records_that_are_hidden_are_refused_by_name(
    elsewhere: Path, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = elsewhere / "data"
    (data / "state").mkdir(parents=True)
    monkeypatch.setenv("PODBOT_STATE", str(data / "state"))
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(data / "layers"))
    if any(f"{data}/".startswith(f"{private}/") for private in ("/tmp", "/var/tmp")):
        # What a sandbox has for itself needs no overlay to hide anything.
        assert overlay_finding().state == "found"
        OverlaySandbox(project, discard=True).close()
        return

    error, finding = refusal(project), overlay_finding()

    assert error.kind is Kind.LAYER_FAILED
    assert f"lies in {data}, which is overlaid to hide paths in it" in error.message
    assert f"outside of {data}," in (error.remedy or "")
    assert finding.state == "missing" and f"lies in {data}" in finding.detail


def test_the_doctor_refuses_a_layer_folder_that_is_open_to_others_as_a_run_does(
    home: Path, project: Path, own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_others = own_layers / "open"
    open_to_others.mkdir()
    open_to_others.chmod(0o755)
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(open_to_others))

    error, finding = refusal(project), overlay_finding()

    assert (finding.state, finding.detail, finding.fix) == ("missing", error.message, error.remedy)


def test_the_doctor_finds_no_room_for_layers_below_a_file(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(project / "README.md" / "layers"))
    assert refusal(project).kind is Kind.LAYER_FAILED
    assert overlay_finding().state == "missing"


@pytest.mark.parametrize("name", ["/", "/nonexistent/home"])
def test_a_home_that_is_none_is_not_overlaid(
    name: str, project: Path, own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", name)
    assert mounts.home() is None
    assert overlay_finding().state == "found"
    with OverlaySandbox(project, discard=True) as sandbox:
        assert sandbox.exec(["sh", "-c", "echo $HOME"]).stdout == "/tmp\n"


def test_a_default_layer_folder_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(layers.ROOT_VARIABLE)
    assert layers.described() == f"the layer folder {layers.place()}"
