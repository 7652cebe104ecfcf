"""Attacks on keys and tokens that no list names: what looks like one is hidden."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import inside, new_folder, shell

from podbot.sandbox import Policy, layers
from podbot.sandbox.overlay import _key_files
from podbot.sandbox.overlay.launcher import OverlaySandbox

SECRET = "planted-secret"
BY_NAME = [
    ".my-tool/token", ".my-tool/credentials.json", ".config/tool/oauth_creds.json", ".env",
    "server.pem", ".keys/id_ed25519", ".app/api-key.txt", ".deep/a/b/c/secrets.yaml",
]  # fmt: skip
BY_TEXT = {
    ".my-tool/settings": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n",
    ".my-tool/config.json": json.dumps({"user": "me", "access_token": SECRET}),
    ".toolrc": f"//registry/:_authToken={SECRET}\n",
    ".config/tool/state": f"ghp_{SECRET}",
}
SEEN = {
    ".my-tool/notes": "nothing of the kind", ".config/tool/theme.json": json.dumps({"a": 1}),
    ".my-tool/tokenizer.json": "a model's", ".my-tool/author": "me",
}  # fmt: skip


def plant(home: Path, name: str, text: str = SECRET, mode: int = 0o600) -> str:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own, and as much time as it takes to look at it."""
    path = new_folder()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setattr(_key_files, "MOST_SECONDS", 60.0)
    monkeypatch.setattr(_key_files, "FRESH_SECONDS", -1.0)
    yield path
    layers.remove(path)


def test_what_looks_like_a_key_or_a_token_is_gone(home: Path, target: Path) -> None:
    planted = [plant(home, name) for name in BY_NAME]
    planted += [plant(home, name, text) for name, text in BY_TEXT.items()]
    seen = [plant(home, name, text) for name, text in SEEN.items()]
    seen.append(plant(home, ".my-tool/public.pem", mode=0o644))
    with OverlaySandbox(target, discard=True) as sandbox:
        code = "tell([attempt(os.lstat, path) for path in sys.argv[1:]])"
        found = inside(sandbox, code, *planted)
        rest = inside(sandbox, code, *seen)
        stolen = shell(sandbox, f"mv ~/.my-tool ~/x; cp -a ~ {target}/all; grep -r {SECRET} ~ .")

    assert set(found) == {"ENOENT"}, dict(zip(planted, found, strict=True))
    assert set(rest) == {"worked"}, dict(zip(seen, rest, strict=True))
    assert {line.rsplit("/", 1)[1] for line in stolen.split()} == {f"public.pem:{SECRET}"}
    assert any(f"{len(planted)} files below {home}" in note for note in sandbox.notes)


def test_nothing_is_hidden_in_a_target_and_a_policy_can_show_one_or_all(
    home: Path, target: Path
) -> None:
    kept = [plant(target, ".env"), plant(home, ".work/project/.env"), plant(home, ".a/token")]
    other = plant(home, ".b/token")
    policy = Policy(readable=("~/.a/token",))
    with OverlaySandbox([target, home / ".work"], policy=policy, discard=True) as sandbox:
        assert [sandbox.exists(path) for path in kept] == [True] * 3
        assert not sandbox.exists(other)
    with OverlaySandbox(home, discard=True) as sandbox:
        assert sandbox.exists(other)
    with OverlaySandbox(target, policy=Policy(hide_by_rule=False), discard=True) as sandbox:
        assert sandbox.exists(other)
        assert not any("look like keys" in note for note in sandbox.notes)


def test_reaching_a_bound_is_said(
    home: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        plant(home, f".tool{number}/token")
    for bound in ("MOST_FOLDERS", "MOST_ENTRIES"):
        with monkeypatch.context() as patch:
            patch.setattr(_key_files, bound, 3)
            with OverlaySandbox(target, discard=True) as sandbox:
                assert any("more than could be looked at" in note for note in sandbox.notes)
        with OverlaySandbox(target, discard=True) as sandbox:
            assert not any("more than could be looked at" in note for note in sandbox.notes)
        layers.remove(home / ".tool5")
        plant(home, ".tool5/token")


def test_a_link_a_fifo_and_what_is_closed_do_no_harm(home: Path, target: Path) -> None:
    (home / ".a").mkdir()
    os.mkfifo(home / ".a/token", 0o600)
    (home / ".b").symlink_to("/")
    (home / ".c").symlink_to(".c")
    (home / ".d").mkdir(mode=0)
    plant(home, ".e/odd\n\udcff-token")

    found = _key_files.search(str(home), ())

    assert [os.path.basename(path) for path in found.paths] == ["odd\n\udcff-token"]
    with OverlaySandbox(target, discard=True) as sandbox:
        assert shell(sandbox, "ls ~/.e") == ""
    (home / ".d").rmdir()


def test_what_was_found_is_looked_for_again_when_a_folder_changed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plant(home, ".a/token")
    assert _key_files.search(str(home), ()).paths == (first,)
    again = _key_files.search(str(home), ())
    second = plant(home, ".a/secret")

    assert again.paths == (first,)
    assert _key_files.search(str(home), ()).paths == (second, first)
    monkeypatch.setattr(_key_files, "FRESH_SECONDS", 1000.0)
    plant(home, ".b/token")
    assert _key_files.search(str(home), ()).paths == (second, first)
