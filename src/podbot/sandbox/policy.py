"""What a sandbox may see and reach, and which environment it starts with.

Set by the person or program that opens the sandbox; never by what runs inside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from podbot.errors import Kind, SandboxError
from podbot.frozen import dataclass, field, frozen_dict
from podbot.sandbox.network import Network

if TYPE_CHECKING:
    from pathlib import Path

    from podbot.egress import Route

DEFAULT_ENVIRONMENT: tuple[str, ...] = (
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "TZ",
    "USER",
)
"""The host variables a sandbox sees unless the policy says otherwise. No secret lives in these."""

_EDITORS = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf", "Antigravity", "Kiro")
_OF_EDITORS = tuple(
    f"~/.config/{editor}/User/{place}"
    for editor in _EDITORS
    for place in (
        "globalStorage/state.vscdb", "globalStorage/state.vscdb.backup", "workspaceStorage",
    )
)  # fmt: skip
"""Logins of editors that are made of one, and what their agents were told."""

DEFAULT_HIDDEN: tuple[str, ...] = (
    # Keys and logins
    "~/.ssh",
    "~/.gnupg",
    "~/.local/share/gnupg",
    "~/.subversion/auth",
    "~/.gcm",
    "~/.tsh",
    "~/.pki",
    "~/.password-store",
    "~/.local/share/password-store",
    "~/.local/share/gopass",
    "~/.config/gopass",
    "~/.config/rbw",
    "~/.cache/rbw",
    "~/.local/share/rbw",
    "~/.netrc",
    "~/.authinfo",
    "~/.authinfo.gpg",
    "~/.git-credentials",
    "~/.config/git/credentials",
    "~/.config/gh",
    "~/.config/glab-cli",
    "~/.config/hub",
    "~/.local/share/keyrings",
    "~/.local/share/kwalletd",
    "~/.config/op",
    "~/.config/Bitwarden",
    "~/.config/Bitwarden CLI",
    "~/.config/sops",
    "~/.config/age",
    "~/.vault-token",
    # Clouds and clusters
    "~/.aws",
    "~/.azure",
    "~/.config/gcloud",
    "~/.config/doctl",
    "~/.config/hcloud",
    "~/.config/fly",
    "~/.fly",
    "~/.oci",
    "~/.kube",
    "~/.docker/config.json",
    "~/.docker/contexts",
    "~/.config/containers/auth.json",
    "~/.terraform.d/credentials.tfrc.json",
    "~/.terraformrc",
    "~/.config/rclone",
    "~/.s3cfg",
    "~/.boto",
    "~/.pulumi",
    "~/.cloudflared",
    "~/.databrickscfg",
    # Package registries
    "~/.npmrc",
    "~/.yarnrc.yml",
    "~/.pypirc",
    "~/.cargo/credentials",
    "~/.cargo/credentials.toml",
    "~/.gem/credentials",
    "~/.m2/settings.xml",
    "~/.m2/settings-security.xml",
    "~/.gradle/gradle.properties",
    "~/.composer/auth.json",
    "~/.config/composer/auth.json",
    "~/.nuget/NuGet/NuGet.Config",
    "~/.config/pip/pip.conf",
    "~/.pip/pip.conf",
    "~/.config/pypoetry/auth.toml",
    "~/.local/share/uv/credentials",
    "~/.config/uv/credentials.toml",
    "~/.cache/huggingface/token",
    "~/.huggingface/token",
    # Databases
    "~/.pgpass",
    "~/.my.cnf",
    "~/.mylogin.cnf",
    # Browsers and mail
    "~/.mozilla",
    "~/.thunderbird",
    "~/.config/google-chrome",
    "~/.config/chromium",
    "~/.config/BraveSoftware",
    "~/.config/microsoft-edge",
    "~/.config/vivaldi",
    "~/.config/opera",
    "~/.config/google-chrome-beta",
    "~/.config/google-chrome-unstable",
    "~/.config/BraveSoftware-Beta",
    "~/.librewolf",
    "~/.waterfox",
    "~/.zen",
    "~/.floorp",
    "~/.tor-browser",
    "~/.local/share/torbrowser",
    "~/.config/falkon",
    "~/.config/epiphany",
    "~/.local/share/epiphany",
    "~/.config/qutebrowser",
    "~/.local/share/qutebrowser",
    "~/.config/mozilla",
    "~/snap/firefox",
    "~/snap/chromium",
    "~/.var/app",
    "~/.config/Signal",
    "~/.config/Slack",
    "~/.config/discord",
    "~/.config/opera-beta",
    "~/.config/yandex-browser",
    "~/.config/thorium",
    "~/.config/net.imput.helium",
    "~/.config/zen",
    "~/.cache/mozilla",
    "~/.cache/google-chrome",
    "~/.cache/chromium",
    "~/.config/evolution",
    "~/.local/share/evolution",
    "~/.local/share/TelegramDesktop",
    "~/.config/Element",
    # Editors
    *_OF_EDITORS,
    "~/.vscode-server/data/User/globalStorage",
    "~/.vscode-server/data/User/workspaceStorage",
    "~/.cursor-server/data/User/globalStorage",
    "~/.cursor-server/data/User/workspaceStorage",
    "~/.local/share/zed/threads",
    # Wallets
    "~/.bitcoin",
    "~/.litecoin",
    "~/.dogecoin",
    "~/.electrum",
    "~/.ethereum/keystore",
    "~/.monero",
    "~/.bitmonero",
    "~/.zcash",
    "~/.config/solana",
    "~/.config/Exodus",
    "~/.config/Ledger Live",
    "~/.config/atomic",
    "~/.config/@trezor",
    "~/.electrum-ltc",
    "~/.dashcore",
    "~/.sparrow",
    "~/.walletwasabi",
    "~/.lnd",
    "~/.foundry/keystores",
    "~/.sui/sui_config",
    "~/.aptos",
    "~/.near-credentials",
    # Histories
    "~/.bash_history",
    "~/.zsh_history",
    "~/.zhistory",
    "~/.histfile",
    "~/.local/share/atuin",
    "~/.local/share/fish/fish_history",
    "~/.config/fish/fish_history",
    "~/.sh_history",
    "~/.ksh_history",
    "~/.history",
    "~/.bash_sessions",
    "~/.zsh_sessions",
    "~/.cache/zsh/history",
    "~/.local/state/zsh/history",
    "~/.local/state/bash/history",
    "~/.config/nushell/history.txt",
    "~/.config/nushell/history.sqlite3",
    "~/.local/share/powershell/PSReadLine",
    "~/.python_history",
    "~/.local/state/python_history",
    "~/.ipython/profile_default/history.sqlite",
    "~/.irb_history",
    "~/.mongodb/mongosh",
    "~/.duckdb_history",
    "~/.node_repl_history",
    "~/.psql_history",
    "~/.mysql_history",
    "~/.sqlite_history",
    "~/.rediscli_history",
    "~/.lesshst",
    "~/.viminfo",
    "~/.wget-hsts",
    # Agents' own logins, their backups and transcripts
    "~/.claude/.credentials.json",
    "~/.claude.json",
    "~/.claude.json.backup",
    "~/.claude/backups",
    "~/.claude/projects",
    "~/.claude/history.jsonl",
    "~/.claude/file-history",
    "~/.claude/shell-snapshots",
    "~/.claude/transcripts",
    "~/.claude/sessions",
    "~/.claude/session-env",
    "~/.claude/todos",
    "~/.claude/tasks",
    "~/.claude/plans",
    "~/.claude/debug",
    "~/.claude/paste-cache",
    "~/.config/Claude",
    "~/.codex/auth.json",
    "~/.codex/.credentials.json",
    "~/.codex/sessions",
    "~/.codex/archived_sessions",
    "~/.codex/history.jsonl",
    "~/.codex/session_index.jsonl",
    "~/.codex/log",
    "~/.codex/memories",
    "~/.codex/shell_snapshots",
    "~/.gemini/oauth_creds.json",
    "~/.gemini/google_accounts.json",
    "~/.gemini/.env",
    "~/.gemini/mcp-oauth-tokens.json",
    "~/.gemini/mcp-oauth-tokens-v2.json",
    "~/.gemini/a2a-oauth-tokens.json",
    "~/.gemini/gemini-credentials.json",
    "~/.gemini/tmp",
    "~/.gemini/history",
    "~/.qwen",
    "~/.copilot",
    "~/.config/github-copilot",
    "~/.config/cursor",
    "~/.cursor/projects",
    "~/.cursor/chats",
    "~/.cursor/cli-config.json",
    "~/.cursor/mcp.json",
    "~/.codeium",
    "~/.config/amp",
    "~/.local/share/amp",
    "~/.cache/amp",
    "~/.config/crush",
    "~/.local/share/crush",
    "~/.local/share/amazon-q",
    "~/.local/share/kiro-cli",
    "~/.kiro",
    "~/.config/goose/secrets.yaml",
    "~/.local/share/goose",
    "~/.local/state/goose",
    "~/.local/share/opencode",
    "~/.local/state/opencode",
    "~/.continue",
    "~/.config/anthropic",
    "~/.config/openai",
    "~/.factory",
    "~/.aider.conf.yml",
    # Display and session
    "~/.Xauthority",
    "~/.ICEauthority",
    # podbot's own state: other sandboxes' layers and journals
    "~/.local/state/podbot",
    "~/.config/podbot",
    # What root could read of the machine
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/krb5.keytab",
    "/etc/ssl/private",
)
"""Paths no sandbox can read unless `Policy.readable` names them. ``~`` is the user's home."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a sandbox may see and reach.

    - ``network``: `Network.none` (loopback only), `Network.host` (the host's network as it is) or
      `Network.allow` (only these hosts, through a proxy outside); the plain words ``"none"`` and
      ``"host"`` mean the same.
    - ``hidden``: paths that do not exist inside, whether or not they exist on the host yet.
    - ``hide_by_rule``: besides that list, what looks like a key or token in the home is hidden,
      and for root what only root may read.
    - ``readable``: exceptions to both, for a login the work really needs.
    - ``writable``: folders whose **real** content the sandbox may change, without review. Empty
      by default; named in the guarantees when used.
    - ``environment``: variables set inside; ``pass_environment``: host variables copied when
      set there. Nothing else of the host's environment is seen.
    - ``python``: the interpreter of the Python kernel; default the one that runs podbot.
    - ``routes``: services whose key is added outside (`podbot.egress.Route`). Inside are their
      address and a placeholder; the host's variable or file with the key is not there, whatever
      else is said. The network ``none`` becomes one that leads to them alone.
    """

    network: Network = Network.none
    hidden: tuple[str, ...] = DEFAULT_HIDDEN
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=frozen_dict)
    pass_environment: tuple[str, ...] = DEFAULT_ENVIRONMENT
    python: str | None = None
    hide_by_rule: bool = True
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", Network(self.network))
        if self.routes != ():
            from podbot.sandbox import _brokered  # few policies have any

            routes, network = _brokered.checked(self.routes, self.network)
            object.__setattr__(self, "routes", routes)
            object.__setattr__(self, "network", network)
        for name in ("hidden", "readable", "writable", "pass_environment"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if not isinstance(self.environment, Mapping):
            raise SandboxError(
                "Policy.environment must be a mapping of names to values",
                kind=Kind.INVALID,
                remedy='write environment={"NAME": "value"}',
            )
        variables: Iterable[tuple[object, object]] = self.environment.items()
        for key, value in variables:  # callers need not be typed
            if not isinstance(key, str) or not isinstance(value, str):
                raise SandboxError(
                    f"environment variable {key!r} has a name or a value that is not text",
                    kind=Kind.INVALID,
                    remedy="give strings",
                )
            if not key or "=" in key or "\0" in key or "\0" in value:
                raise SandboxError(
                    f"environment variable {key!r} cannot be set",
                    kind=Kind.INVALID,
                    remedy="names are non-empty and without '=', neither part holds a NUL",
                )

    def hidden_paths(self, home: Path) -> tuple[str, ...]:
        """The absolute paths to hide, less those made readable again."""
        found = _hidden_paths(self.hidden, self.readable, str(home))
        if not self.routes:
            return found
        from podbot.sandbox import _brokered

        return tuple(sorted({*found, *_brokered.key_files(self.routes)}))

    def readable_paths(self, home: Path) -> tuple[str, ...]:
        """The absolute paths that are readable though they would be hidden."""
        return tuple(_absolute(path, str(home)) for path in self.readable)

    def environment_inside(self, home: Path) -> dict[str, str]:
        """The whole environment a command starts with."""
        inside = self.passed_on()
        inside.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        inside["HOME"] = str(home)
        inside["TMPDIR"] = "/tmp"  # noqa: S108 - the sandbox's own private /tmp
        inside.update(self.variables_set())
        return inside

    def passed_on(self) -> dict[str, str]:
        """The host variables that are copied; never one with the key of a route."""
        passed = {name: os.environ[name] for name in self.pass_environment if name in os.environ}
        if not self.routes:
            return passed
        from podbot.sandbox import _brokered

        return _brokered.without_keys(passed, self.routes)

    def variables_set(self) -> dict[str, str]:
        """The variables that are set inside; those that the caller names win.

        Raises `SandboxError` if one of these would bring the key of a route inside.
        """
        found = dict(self.network.variables)
        if self.routes:
            from podbot.sandbox import _brokered

            _brokered.refuse_keys(self.environment, self.routes)
            found |= _brokered.variables(self.routes)
        return found | dict(self.environment)


def _texts(name: str, given: object) -> tuple[str, ...]:
    """What a field holds, whichever kind of collection it was given as. Paths may be `Path`s."""
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        what = "one string" if isinstance(given, str) else f"{given!r:.80}"
        raise SandboxError(
            f"Policy.{name} must be a tuple of strings, not {what}",
            kind=Kind.INVALID,
            remedy=f"write {name}=(…,)",
        )
    return tuple([item if isinstance(item, str) else _text(name, item) for item in given])


def _text(name: str, item: object) -> str:
    text = item
    if isinstance(item, os.PathLike) and name != "pass_environment":
        text = os.fspath(item)
    if not isinstance(text, str):
        raise SandboxError(
            f"Policy.{name} holds {item!r:.80}, which is not a string",
            kind=Kind.INVALID,
            remedy="give strings",
        )
    return text


@lru_cache(maxsize=64)
def _hidden_paths(hidden: tuple[str, ...], readable: tuple[str, ...], home: str) -> tuple[str, ...]:
    shown = {_absolute(path, home) for path in readable}
    covered = {_absolute(path, home) for path in hidden} - shown
    for path in shown:
        above = next((other for other in covered if path.startswith(other + "/")), None)
        if above is not None:
            raise SandboxError(
                f"{path} cannot be readable while {above} is hidden",
                kind=Kind.INVALID,
                remedy=f"make {above} readable and hide what else is in it",
            )
    return tuple(sorted(covered))


def _absolute(path: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    if not path.startswith("/"):
        raise SandboxError(
            f"policy path {path!r} is not absolute",
            kind=Kind.INVALID,
            remedy="start it with / or ~/",
        )
    return os.path.normpath(path)
