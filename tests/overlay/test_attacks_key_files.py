"""Attacks on keys and tokens that no list names: what looks like one is hidden."""

from __future__ import annotations

import itertools
import json
import os
import shutil
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
    "server.pem", ".keys/id_ed25519", ".keys/id_ecdsa_work", ".tools/.vault_pass",
    ".app/api-key.txt", ".deep/a/b/c/secrets.yaml",
]  # fmt: skip
BY_TEXT = {
    ".my-tool/settings": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n",
    ".my-tool/config.json": json.dumps({"user": "me", "access_token": SECRET}),
    ".toolrc": f"//registry/:_authToken={SECRET}\n",
    ".config/tool/state": f"ghp_{SECRET}",
    ".config/tool/aws": f"[default]\naws_secret_access_key = {SECRET}\n",
    ".config/tool/token.was": json.dumps({"long": "x" * 600, "token": SECRET}),
    ".config/tool/bearer": f"Authorization: Bearer {SECRET}\n",
    ".config/tool/database": f"postgres://me:{SECRET}@host/name\n",
    ".config/tool/machines": f"machine host login me password {SECRET}\n",
    ".config/tool/registry": json.dumps({"auths": {"r": {"auth": "cGxhbnRlZDpzZWNyZXQ="}}}),
    ".config/tool/cluster": f"users:\n- user:\n    client-key-data: {SECRET}\n",
    ".config/tool/vault": f"$ANSIBLE_VAULT;1.1;AES256\n{SECRET}\n",
    ".config/tool/word": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n",
}
SEEN = {
    ".my-tool/notes": "nothing of the kind", ".config/tool/theme.json": json.dumps({"a": 1}),
    ".my-tool/tokenizer.json": "a model's", ".my-tool/author": "me",
    ".my-tool/limits": "max_tokens = 100\ncompass: north\n", ".keys/id_rsa.pub": "ssh-rsa AAAA",
    ".my-tool/installation": "1b4e28ba-2fa1-11d2-883f-0016d3cca427\n",
}  # fmt: skip


def plant(home: Path, name: str, text: str = SECRET, mode: int = 0o600) -> str:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own."""
    path = new_folder()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setattr(_key_files, "_known", {})
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


def test_a_file_that_becomes_a_secret_is_hidden_from_then_on(home: Path, target: Path) -> None:
    path = plant(home, ".my-tool/settings", "color = red\n")
    for folder in (home, home / ".my-tool"):
        os.utime(folder, (1, 1))
    os.utime(path, (1, 1))
    with OverlaySandbox(target, discard=True) as sandbox:
        assert sandbox.exists(path)

    Path(path).write_text(f"access_token = {SECRET}\n")

    with OverlaySandbox(target, discard=True) as sandbox:
        assert not sandbox.exists(path)


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
    for number in range(4):
        plant(home, f".tool0/note{number}")
    for bound in (
        "MOST_FOLDERS", "MOST_NAMES", "MOST_FILES", "MOST_IN_FOLDER", "MOST_LOOKED_INTO"
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(_key_files, bound, 3)
            patch.setattr(_key_files, "_known", {})
            with OverlaySandbox(target, discard=True) as sandbox:
                (said,) = (note for note in sandbox.notes if "holds more than" in note)
                assert "--hide PATH, Policy.hidden" in said, bound
        with monkeypatch.context() as patch:
            patch.setattr(_key_files, "_known", {})
            with OverlaySandbox(target, discard=True) as sandbox:
                assert not any("holds more than" in note for note in sandbox.notes)


def test_however_long_it_takes_the_same_home_gives_the_same_answer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = sorted(plant(home, name) for name in BY_NAME)
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr("time.monotonic", lambda: next(hours))

    found = _key_files.search(str(home), ())

    assert (list(found.paths), found.whole) == (planted, True)


@pytest.mark.parametrize(
    ("bound", "most", "names"),
    [
        ("MOST_FOLDERS", 3, [".a/token", ".b/token", ".token"]),
        ("MOST_FILES", 4, [".a/token", ".b/token", ".token"]),
        ("MOST_NAMES", 8, [".a/token", ".b/token", ".token"]),
        ("MOST_LOOKED_INTO", 0, [".a/sub/token", ".a/token", ".b/token", ".c/token", ".token"]),
    ],
)
def test_within_a_bound_the_nearest_come_first_in_the_order_of_names(
    home: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, names: list[str]
) -> None:
    monkeypatch.setattr(_key_files, bound, most)
    every = [".token", ".a/sub/token", ".c/token", ".b/token", ".a/token", ".b/note"]
    for order in (every, every[::-1]):
        for name in order:
            plant(home, name)

        found = _key_files.search(str(home), ())

        assert [os.path.relpath(path, home) for path in found.paths] == names
        assert not found.whole
        shutil.rmtree(home)
        home.mkdir()


def test_a_full_folder_does_not_hide_those_after_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_key_files, "MOST_IN_FOLDER", 3)
    for number in range(6):
        plant(home, f".a/note{number}")
    secret = plant(home, ".b/token")

    assert _key_files.search(str(home), ()).paths == (secret,)


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


def test_what_was_found_is_looked_for_again_when_a_folder_changed(home: Path) -> None:
    first = plant(home, ".a/token")
    assert _key_files.search(str(home), ()).paths == (first,)
    again = _key_files.search(str(home), ())
    second = plant(home, ".a/secret")

    assert again.paths == (first,)
    assert _key_files.search(str(home), ()).paths == (second, first)
    third = plant(home, ".b/token")
    assert _key_files.search(str(home), ()).paths == (second, first, third)
