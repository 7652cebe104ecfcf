"""Routes of a sandbox: a service is used with a key that nobody inside ever has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import PYTHON, inside, until
from model_service import BACKWARDS, PIECES, REAL, SEARCH, STREAM, Model, model, pieces

from podbot.egress import FromFile, FromVariable, Route, built_in
from podbot.errors import Kind, SandboxError
from podbot.sandbox import Network, Policy, connections
from podbot.sandbox.local import LocalSandbox
from podbot.sandbox.overlay.launcher import OverlaySandbox


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("papers")
    with model(folder) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        yield made


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> FromVariable:
    monkeypatch.setenv("MODEL_KEY", REAL)
    return FromVariable("MODEL_KEY")


def policy(*routes: Route, **more: object) -> Policy:
    return Policy(routes=routes, python=PYTHON, **more)  # type: ignore[arg-type]


def streamed(sandbox: OverlaySandbox, provider: Model) -> list[str]:
    with sandbox.spawn([PYTHON, "-I", "-S", "-c", STREAM]) as process:
        return pieces(process, provider)


ALL = ["200", *(f"piece{number}" for number in range(PIECES))]


def test_a_model_is_used_with_a_key_that_is_nowhere_inside(
    target: Path, provider: Model, key: FromVariable
) -> None:
    given = policy(
        built_in("anthropic", key, base=provider.base),
        pass_environment=("PATH", "MODEL_KEY"),
        network=Network.none,
    )
    with OverlaySandbox(target, policy=given) as sandbox:
        assert streamed(sandbox, provider) == ALL
        assert provider.keys[-1] == REAL

        argv = [PYTHON, "-I", "-S", "-c", SEARCH, BACKWARDS, str(target)]
        found, seen = json.loads(sandbox.exec(argv, timeout=300).check().stdout)
        assert found == [] and seen > 3

        assert sandbox.gateway is not None and until(lambda: sandbox.gateway.records)
        record = sandbox.gateway.records[0]
        assert (record.rule, record.path, record.status) == (
            "route anthropic", "/v1/messages", 200,
        )  # fmt: skip
        sandbox.write("made", "x")
        told = repr((sandbox.gateway.records, sandbox.guarantees, sandbox.notes))
    assert sandbox.layer is not None
    lines, _ = connections.read(sandbox.layer)
    kept = [path for path in sandbox.layer.path.iterdir() if path.is_file()]
    told += repr(lines) + "".join(path.read_text() for path in kept)
    sandbox.layer.discard()
    assert len(lines) == 1 and REAL not in told and "MODEL_KEY" not in told
    assert "FromVariable" not in repr(given)


def test_a_file_with_the_key_is_hidden_wherever_it_lies(target: Path, provider: Model) -> None:
    file, other = target / "my.key", target / "link-to-key"
    file.write_text(REAL)
    other.symlink_to(file)
    given = policy(
        built_in("anthropic", FromFile(str(other)), base=provider.base), readable=(str(file),)
    )
    with OverlaySandbox(target, policy=given, discard=True) as sandbox:
        argv = [PYTHON, "-I", "-S", "-c", SEARCH, BACKWARDS, str(target)]
        assert json.loads(sandbox.exec(argv, timeout=300).check().stdout)[0] == []
        assert streamed(sandbox, provider) == ALL


def test_programs_find_a_route_by_the_variables_they_read(target: Path, key: FromVariable) -> None:
    kinds = ("anthropic", "openai", "gemini")
    local = built_in("openai", key, name="local", base="http://host.podbot.internal:1")
    given = policy(*(built_in(kind, key) for kind in kinds), local)
    with OverlaySandbox(target, policy=given, discard=True) as sandbox:
        found = inside(sandbox, "tell(dict(os.environ))")

    assert found["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:3128/anthropic"
    assert found["OPENAI_BASE_URL"] == "http://127.0.0.1:3128/openai/v1"
    assert found["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:3128/gemini"
    shapes = {"ANTHROPIC_API_KEY": "sk-ant-", "OPENAI_API_KEY": "sk-", "GEMINI_API_KEY": "AIza"}
    assert all(found[name].startswith(shape) for name, shape in shapes.items())
    assert all("placeholder" in found[name] for name in shapes)


def test_a_route_opens_no_other_way(target: Path, provider: Model, key: FromVariable) -> None:
    given = policy(built_in("anthropic", key, base=provider.base))
    ask = """
import http.client
def ask(method, url):
    line = http.client.HTTPConnection("127.0.0.1", 3128, timeout=60)
    line.request(method, url, headers={"Host": sys.argv[1]} if method == "CONNECT" else {})
    return line.getresponse().status
tell([ask("CONNECT", sys.argv[1]), ask("GET", "http://" + sys.argv[1] + "/"),
      ask("GET", "/anthropic/v1/files"), ask("GET", "/openai/v1/models")])
"""
    with OverlaySandbox(target, policy=given, discard=True) as sandbox:
        place = provider.base.removeprefix("https://")
        assert inside(sandbox, ask, place) == [403, 403, 403, 403]


def test_what_a_sandbox_enforces_names_its_routes(target: Path, key: FromVariable) -> None:
    with OverlaySandbox(target, policy=policy(built_in("openai", key)), discard=True) as sandbox:
        found = {each.name: each for each in sandbox.guarantees}
    assert found["route:openai"].enforced
    assert "https://api.openai.com" in found["route:openai"].by


def test_a_variable_that_would_bring_the_key_inside_is_refused_or_left_out(
    target: Path, key: FromVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPY_OF_IT", REAL)
    route = built_in("anthropic", key)
    passing = policy(route, pass_environment=("PATH", "MODEL_KEY", "COPY_OF_IT"))
    with OverlaySandbox(target, policy=passing, discard=True) as sandbox:
        found = inside(sandbox, "tell(dict(os.environ))")
    assert not {"MODEL_KEY", "COPY_OF_IT"} & found.keys()

    with pytest.raises(SandboxError, match="KEY_INSIDE would bring a key inside") as caught:
        OverlaySandbox(target, policy=policy(route, environment={"KEY_INSIDE": REAL}))
    assert REAL not in str(caught.value)


@pytest.mark.parametrize("wrong", ["anthropic", ["sk-real"], [REAL, 1], 1])
def test_what_is_no_route_is_refused_and_not_repeated(wrong: object) -> None:
    with pytest.raises(SandboxError, match="routes") as caught:
        Policy(routes=wrong)  # type: ignore[arg-type]
    assert caught.value.kind is Kind.INVALID and "sk-real" not in str(caught.value)
    assert REAL not in str(caught.value)


def test_where_no_proxy_is_there_are_no_routes(target: Path, key: FromVariable) -> None:
    route = built_in("anthropic", key)
    with pytest.raises(SandboxError, match="has none"):
        Policy(routes=(route,), network="host")
    with pytest.raises(SandboxError, match="no proxy"):
        LocalSandbox(target, policy=policy(route))
