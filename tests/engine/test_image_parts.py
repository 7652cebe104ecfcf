"""What images are made of, and how they are built: all that can be tried without an engine."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
from service_of_containers import ServiceOfContainers, chunked, reply, running

from podbot import api, engine
from podbot.cli import main
from podbot.engine.image import _debian, _scratch, building, leftovers, recipes
from podbot.engine.image._debian import DebianRoot, bootstrap
from podbot.engine.image.building import ImageRequest
from podbot.engine.image.recipes import AGENTS, Recipe, recipe
from podbot.errors import ConfigError, ContainerError, Kind

DATA = Path(str(resources.files("podbot").joinpath("data", "image")))


# What they are made of


def test_every_agent_is_pinned_to_one_version() -> None:
    for name, agent in AGENTS.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", agent.version)
        assert agent.pinned == f"{name}={agent.package}@{agent.version}"
    assert set(recipes.USUAL_AGENTS) <= set(AGENTS)


def test_the_large_image_has_all_that_the_small_one_has_and_what_nesting_needs() -> None:
    small, large = Recipe("tools").packages, Recipe("sandbox").packages

    assert {"python3", "git"} <= set(small) < set(large)
    assert {"podman", "fuse-overlayfs", "slirp4netns", "nodejs"} <= set(large)
    assert list(large) == sorted(large)


def test_a_recipe_that_is_another_has_another_key() -> None:
    recipes = [Recipe("tools"), Recipe("sandbox"), recipe("sandbox", ["codex"])]

    assert len({each.key for each in recipes}) == 3
    assert recipe("sandbox", ["codex", "codex"]).key == recipes[2].key


@pytest.mark.parametrize("variant, names", [("sandbox", ["nobody"]), ("tools", ["codex"])])
def test_what_cannot_be_in_an_image_is_refused(variant: recipes.Variant, names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(variant, names)

    assert caught.value.kind is Kind.INVALID and caught.value.remedy


def test_the_context_is_the_same_each_time_and_has_all_that_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca").write_text("trusted")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
    context = recipes.context()

    assert context == recipes.context()
    with tarfile.open(fileobj=io.BytesIO(context)) as archive:
        names = archive.getnames()
        taken = archive.extractfile("ca.crt")
        assert taken is not None and taken.read() == b"trusted"
    lines = recipes.file("Containerfile").decode().splitlines()
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    assert copied <= set(names)
    assert {path.name for path in DATA.iterdir()} == set(recipes.CONTEXT)
    stages = re.findall(r"^FROM .* AS (\w+)$", "\n".join(lines), re.MULTILINE)
    assert stages == ["tools", "sandbox"]


def test_a_machine_without_a_file_of_certificates_sends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))  # the library's default too

    assert recipes.certificates() == b""


def test_the_page_about_images_names_the_versions_that_are_installed() -> None:
    page = Path(__file__).parents[2] / "docs" / "images.md"
    rows = re.findall(r"^\| `(\w+)` \| `(\S+)` \| (\S+) \|$", page.read_text(), re.MULTILINE)

    assert rows == [(each.name, each.package, each.version) for each in AGENTS.values()]


# The scripts that run while an image is built


@pytest.mark.parametrize("name", ["askpass", "install", "nesting"])
def test_the_scripts_are_shell_scripts(name: str) -> None:
    subprocess.run(["sh", "-n", DATA / name], check=True)


def test_git_is_told_the_user_and_the_token_in_the_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    environment = {"PATH": os.defpath, "PODBOT_TOKEN_FILE": str(token)}

    def ask(question: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(DATA / "askpass"), question]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert ask("Username for 'https://example.org': ").stdout == "x-access-token\n"
    missing = ask("Password for 'https://example.org': ")
    assert missing.returncode == 1 and str(token) in missing.stderr
    token.write_text("secret")
    assert ask("Password for 'https://example.org': ").stdout == "secret"


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment in which these programs, and the machine's others, are found."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_base_that_has_all_packages_needs_no_network(tmp_path: Path) -> None:
    environment = programs(
        tmp_path / "bin", dpkg_query="echo installed", apt_get="echo called >&2; exit 1"
    )

    command = ["sh", str(DATA / "install"), "sandbox.list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_base_lacks_is_installed(tmp_path: Path) -> None:
    here = 'test "$5" = git || test "$4" = git && echo installed || exit 1'
    environment = programs(
        tmp_path / "bin", dpkg_query=here, apt_get=f'echo "$@" >>{tmp_path}/said', rm="exit 0"
    )

    command = ["sh", str(DATA / "install"), "tools.list"]
    subprocess.run(command, env=environment, capture_output=True, check=True)

    said = (tmp_path / "said").read_text().splitlines()
    installed = said[1].split()[4:]
    assert said[0].split()[0] == "update" and said[1].split()[0] == "install"
    assert installed == [name for name in Recipe("tools").packages if name != "git"]


def test_a_base_that_is_not_debian_is_named_so(tmp_path: Path) -> None:
    for name in ("dirname", "sed"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    command = ["/bin/sh", str(DATA / "install"), "tools.list"]
    done = subprocess.run(
        command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "not Debian" in done.stderr and "remedy" in done.stderr


def test_without_agents_neither_npm_nor_the_network_is_needed() -> None:
    command = [sys.executable, str(DATA / "agents"), "", ""]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == ""


# A root from Debian packages


@pytest.fixture
def debootstrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script in the place of mmdebstrap; gives where its words are noted."""

    def put(script: str) -> Path:
        told = tmp_path / "words"
        found = programs(tmp_path / "bin", mmdebstrap=f'echo "$@" >{told}\n{script}')
        monkeypatch.setenv("PATH", found["PATH"])
        return told

    return put


def test_a_root_comes_as_a_stream_and_what_happens_is_told(
    debootstrapper: Callable[[str], Path],
) -> None:
    said: list[str] = []
    words = debootstrapper(
        "echo 'I: downloading packages with apt...' >&2; echo 'I: using /x as tempdir...' >&2;"
        "echo noise >&2; head -c 1000000 /dev/zero"
    )

    root = DebianRoot(("git", "python3"), mirror="http://mirror.example")
    data = b"".join(bootstrap(root, said.append))

    assert data == bytes(1_000_000)
    assert said == ["downloading packages with apt"]
    told = words.read_text().split()
    assert "--include=git,python3" in told and "--format=tar" in told
    assert told[-3:] == [_debian.SUITE, "-", "http://mirror.example"]


def test_a_root_without_packages_has_the_least_there_is() -> None:
    assert not any(word.startswith("--include") for word in DebianRoot(()).command())
    assert DebianRoot(()).command()[-1] == "-"
    assert DebianRoot(("a",)).key != DebianRoot(("b",)).key
    assert DebianRoot(("a",)).key == DebianRoot(("a",), mirror="http://other.example").key


@pytest.mark.parametrize(
    "complaint, remedy",
    [
        ("E: NO_PUBKEY 0E98404D386FA1D9", "debian-archive-keyring"),
        ("E: unable to pick chroot mode automatically", "uidmap"),
        ("E: apt-get update failed", "--mirror"),
        ("", "--mirror"),
    ],
)
def test_a_bootstrap_that_fails_says_why_and_what_to_do(
    debootstrapper: Callable[[str], Path], complaint: str, remedy: str
) -> None:
    debootstrapper(f"echo '{complaint}' >&2; exit 3" if complaint else "exit 3")

    with pytest.raises(ContainerError) as caught:
        list(bootstrap(DebianRoot(()), lambda _: None))

    assert caught.value.kind is Kind.BUILD_FAILED
    told = complaint.removeprefix("E: ")
    assert "ended with 3" in caught.value.message and told in caught.value.message
    assert caught.value.remedy is not None and remedy in caught.value.remedy


def test_without_the_program_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ContainerError) as caught:
        bootstrap(DebianRoot(()), lambda _: None)

    assert caught.value.kind is Kind.MISSING_DEPENDENCY
    assert caught.value.remedy is not None
    assert "apt-get install mmdebstrap" in caught.value.remedy
    assert "--from scratch" in caught.value.remedy


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_stream_nobody_wants_ends_the_program(
    debootstrapper: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stubborn: bool,
) -> None:
    monkeypatch.setattr(_debian, "END_SECONDS", 0.2 if stubborn else 60.0)
    told = tmp_path / "ending"
    trap = "''" if stubborn else f"'echo cleaned >{told}; exit 1'"
    debootstrapper(
        f"trap {trap} TERM; echo $$ >{told}; head -c 400000 /dev/zero\n"
        # In small steps: a shell looks at its signals between two commands.
        "while true; do sleep 0.05; done"
    )
    pieces = bootstrap(DebianRoot(()), lambda _: None)
    next(pieces)
    if stubborn:
        pid = int(told.read_text())

    pieces.close()

    if stubborn:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    else:
        assert told.read_text() == "cleaned\n"


# A root from this machine's files


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root, unpacked."""
    folder = tmp_path_factory.mktemp("root")
    data = _scratch.root()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert len(names) == len(set(names))
        assert not any(member.mode & 0o6000 for member in archive)
        assert not any(member.isdev() or member.islnk() for member in archive)
    subprocess.run(["tar", "-x", "-C", folder], input=data, check=True)
    return folder


def test_python_git_and_a_shell_run_in_a_root_of_this_machines_files(root: Path) -> None:
    script = (
        "set -e; cd /tmp; python3 -c 'import ctypes, json, ssl, sqlite3; print(6 * 7)';"
        "git init -q x; ls -a x; /usr/bin/env sh -c 'seq 2 | sed s/1/one/'; whoami"
    )
    command = ["unshare", "--user", "--map-root-user", "chroot", root, "/bin/sh", "-c", script]
    (root / "dev" / "null").touch()  # which an engine would give it
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp"}

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["42", ".", "..", ".git", "one", "2", "root"]


def test_nothing_of_a_user_is_taken(root: Path) -> None:
    taken = {path.name for path in root.iterdir()}

    assert "home" not in taken and "workspace" in taken
    assert list((root / "root").iterdir()) == []
    assert {path.name for path in (root / "etc").iterdir()} <= {
        "passwd", "group", "nsswitch.conf", "ssl", "alternatives",
    }  # fmt: skip


def test_a_machine_without_a_shell_or_python_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_scratch, "SEARCH_PATH", str(tmp_path))
        with pytest.raises(ContainerError, match="shell"):
            _scratch.root()
    monkeypatch.setattr(_scratch, "OLDEST_PYTHON", (9, 9))
    with pytest.raises(ContainerError, match=r"Python 9\.9"):
        _scratch.interpreter()


def test_where_the_systems_python_is_missing_ours_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        if command[0] == "/usr/bin/python3":
            raise FileNotFoundError
        return real(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", run)

    found = _scratch.interpreter()

    assert found.program == os.path.realpath(sys.executable)
    assert any(Path(folder, "json").is_dir() for folder in found.library)


def test_links_and_folders_are_gathered_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "real" / "pipe")  # opened as a file it would be waited for
    os.symlink("loop", tmp_path / "loop")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        gathering = _scratch._Gathering(archive)
        gathering.add(str(tmp_path / "link"))
        gathering.add(str(tmp_path / "link" / "deep" / "file"))
        gathering.add(str(tmp_path / "loop"))
        gathering.add("/dev/null")
        gathering.alias(f"{str(tmp_path)[1:]}/link", "elsewhere")

    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        inside = {
            os.path.relpath(f"/{member.name}", tmp_path): member.linkname
            for member in archive
            if member.name.startswith(str(tmp_path)[1:]) and not member.isdir()
        }
    assert inside == {"link": "real", "real/deep/file": "", "loop": "loop"}


# Building, against a small service


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceOfContainers]:
    with running() as made:
        monkeypatch.setenv("PODBOT_ENGINE_SOCKET", made.url)
        yield made


def base_of(variant: recipes.Variant) -> str:
    return f"{building.BASE_NAME}:{DebianRoot(Recipe(variant).packages).key}"


def test_an_image_is_built_on_a_bootstrapped_base_that_is_kept(
    service: ServiceOfContainers,
    debootstrapper: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    debootstrapper("echo 'I: creating tarball...' >&2; printf root")
    for name in ("http_proxy", "npm_config_registry"):
        monkeypatch.setenv(name, f"http://{name}.example")
    said: list[str] = []
    request = ImageRequest(recipe("sandbox", ["codex"]), tag="localhost/mine:1", network="host")

    made = api.build_image(request, said.append)
    api.build_image(request, said.append)

    assert made.names == ("localhost/mine:1",) and made.current
    assert made.agents == (f"codex@{AGENTS['codex'].version}",)
    imports = [each for each in service.asked if each.path.endswith("/images/import")]
    assert [each.body for each in imports] == [b"root"]  # once
    assert service.query("/images/import")["reference"] == base_of("sandbox")
    query = service.query("/build")
    assert query["target"] == "sandbox" and query["networkmode"] == "host"
    arguments = json.loads(query["buildargs"])
    assert arguments["BASE"] == base_of("sandbox")
    assert arguments["AGENTS"] == AGENTS["codex"].pinned
    assert arguments["http_proxy"] == "http://http_proxy.example"
    assert arguments["NPM_REGISTRY"] == "http://npm_config_registry.example"
    assert "creating tarball" in said and "STEP 1/1: FROM x" in said


def test_a_fresh_build_bootstraps_again(
    service: ServiceOfContainers, debootstrapper: Callable[[str], Path]
) -> None:
    debootstrapper("printf root")
    service.add_image(base_of("tools"), {})

    api.build_image(ImageRequest(Recipe("tools"), fresh=True), lambda _: None)

    assert service.query("/images/import")["reference"] == base_of("tools")
    assert service.query("/build")["nocache"] == "true"


def test_an_import_that_fails_ends_the_bootstrap(
    service: ServiceOfContainers, debootstrapper: Callable[[str], Path], tmp_path: Path
) -> None:
    debootstrapper(
        f"echo $$ >{tmp_path}/pid; head -c 300000 /dev/zero; while true; do sleep 0.05; done"
    )
    service.on(r"POST .*/images/import", lambda *_: None)  # hangs up
    # Reading stops after the head: the rest of a body without an end would be waited for.
    service.on(r"GET .*/images/.*/json", chunked([b'{"message":"no"}'], 404))

    with engine.connect(service.url) as found:
        process: list[int] = []

        def hang_up(_: str) -> None:
            if (tmp_path / "pid").exists() and (text := (tmp_path / "pid").read_text()):
                process.append(int(text))
                os.kill(process[0], signal.SIGTERM)

        with pytest.raises(ContainerError) as caught:
            building.build(found, ImageRequest(Recipe("tools")), hang_up)

    assert caught.value.kind in (Kind.BUILD_FAILED, Kind.CONNECTION_FAILED)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{process[0]}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_build_that_fails_shows_its_last_lines_and_a_remedy(service: ServiceOfContainers) -> None:
    service.add_image("some/base", {})
    service.said_by_build = [
        {"stream": f"line {number}\n"} for number in range(10)
    ] + [{"error": "npm ended with 1"}]  # fmt: skip
    request = ImageRequest(Recipe("tools"), source="some/base")

    with pytest.raises(ContainerError) as caught:
        api.build_image(request, lambda _: None)

    assert caught.value.kind is Kind.BUILD_FAILED
    assert "npm ended with 1" in caught.value.message and "line 9" in caught.value.message
    assert "line 3" not in caught.value.message
    assert caught.value.remedy is not None and "--network host" in caught.value.remedy


def test_an_engine_that_is_lost_in_a_build_is_no_failed_build(service: ServiceOfContainers) -> None:
    service.add_image("some/base", {})
    service.on(r"POST .*/build", lambda *_: None)

    with pytest.raises(ContainerError) as caught:
        api.build_image(ImageRequest(Recipe("tools"), source="some/base"), lambda _: None)

    assert caught.value.kind is Kind.CONNECTION_FAILED


def test_a_base_that_is_not_here_is_pulled(service: ServiceOfContainers) -> None:
    step = json.dumps({"status": "Pulling", "id": "layer"}).encode()
    service.on(r"POST .*/images/create", chunked([step + b"\n"]))
    said: list[str] = []

    api.build_image(ImageRequest(Recipe("tools"), source="some/base:1"), said.append)

    assert service.query("/images/create") == {"fromImage": "some/base", "tag": "1"}
    assert "layer: Pulling" in said
    assert json.loads(service.query("/build")["buildargs"])["BASE"] == "some/base:1"


def test_what_an_interrupted_build_left_is_removed_and_nothing_else(
    service: ServiceOfContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is after a build by podbot's own service, which ends with podbot."""
    service.add_image("some/base:1", {})
    service.said_by_build = [
        {"stream": "STEP 1/2: FROM some/base:1\n"}, {"stream": "--> 0123456789a\n"}
    ]  # fmt: skip
    there = ["fedcba987654-working-container", "podbot-other"]
    left = ["base-working-container-1", "0123456789ab-working-container"]

    def listed(*names: str) -> bytes:
        return reply([{"Id": name, "Names": [name]} for name in names])

    service.containers = [{"Id": name, "Labels": {}} for name in (*there, *left)]
    service.on(r"GET .*/libpod/containers/json", listed(*there))

    def interrupted(text: str) -> None:
        if text.startswith("-->"):
            service.on(
                r"GET .*/libpod/containers/json",
                listed(*there, *left, "aaaaaaaaaaaa-working-container"),
            )
            raise KeyboardInterrupt

    monkeypatch.setattr(leftovers, "OWN_SERVICE", engine.connect().found_by)
    with pytest.raises(KeyboardInterrupt):
        api.build_image(ImageRequest(Recipe("tools"), source="some/base:1"), interrupted)

    assert [each["Id"] for each in service.containers] == there


def test_an_engine_that_goes_on_tidies_up_by_itself(service: ServiceOfContainers) -> None:
    service.add_image("some/base:1", {})

    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.build_image(ImageRequest(Recipe("tools"), source="some/base:1"), interrupted)

    assert not any("external" in each.target for each in service.asked)


def test_an_image_of_this_machines_files_is_imported_with_its_settings(
    service: ServiceOfContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_scratch, "root", lambda: b"files")
    request = ImageRequest(Recipe("tools"), source="scratch", tag="localhost/own:latest")

    made = api.build_image(request, lambda _: None)

    assert made.variant == "tools" and made.source == "scratch" and made.current
    asked = next(each for each in service.asked if each.path.endswith("/images/import"))
    assert asked.body == b"files"
    assert "WORKDIR%20%2Fworkspace" in asked.target


def test_an_image_of_this_machines_files_is_for_tools_only(service: ServiceOfContainers) -> None:
    with pytest.raises(ConfigError, match="small"):
        api.build_image(ImageRequest(Recipe("sandbox"), source="scratch"), lambda _: None)


def test_images_are_listed_the_newest_first_and_old_ones_are_told(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = {building.VARIANT_LABEL: "sandbox", building.AGENTS_LABEL: "codex@0.0.1 gone@1"}
    service.add_image("localhost/old:latest", marks, created=5)
    current = {building.VARIANT_LABEL: "tools", building.KEY_LABEL: Recipe("tools").key}
    service.add_image("localhost/new:latest", current, created=9)

    assert [image.names[0] for image in api.images()] == [
        "localhost/new:latest", "localhost/old:latest",
    ]  # fmt: skip
    assert main(["image", "list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "old" not in shown[1] and "sandbox, old" in shown[2] and "codex@0.0.1" in shown[2]
    assert main(["image", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["images"]
    assert [each["current"] for each in told] == [True, False]


def test_a_list_without_images_says_how_to_make_one(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "list"]) == 0
    assert "podbot image build" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, expected",
    [
        ((), ("claude", "codex")),
        (("--with", "goose, codex"), ("goose", "codex")),
        (("--with", "none"), ()),
        (("--with", "all"), tuple(AGENTS)),
        (("--small",), ()),
    ],
)
def test_the_command_builds_with_the_agents_that_are_named(
    service: ServiceOfContainers,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:
    service.add_image("some/base", {})

    assert main(["image", "build", "--from=some/base", *words]) == 0

    shown = capsys.readouterr()
    assert "built localhost/podbot-sandbox:latest" in shown.out and "building" in shown.err
    arguments = json.loads(service.query("/build")["buildargs"])
    assert arguments["AGENTS"].split() == [AGENTS[name].pinned for name in expected]
    assert service.query("/build")["target"] == ("tools" if "--small" in words else "sandbox")


def test_the_command_tells_the_outcome_as_data(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    service.add_image("some/base", {})

    words = ["--from=some/base", "--small", "--tag=localhost/x:2", "--json"]
    assert main(["image", "build", *words]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["names"] == ["localhost/x:2"] and told["variant"] == "tools"


def test_an_agent_nobody_knows_is_told_before_anything_is_done(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "build", "--with", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
    assert service.asked == []
