"""Words for well-known services, by name: what it takes to install from them, and no more.

A name is all that is judged: whoever may reach a registry may also publish there with a token of
his own. That is why there is none for GitHub: a bare connection to it would permit pushing
anything anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from podbot.frozen import frozen_dict

PRESETS: Mapping[str, tuple[str, ...]] = frozen_dict(
    {
        "crates": ("index.crates.io:443", "static.crates.io:443", "crates.io:443"),
        "debian": (
            "deb.debian.org:443",
            "security.debian.org:443",
            "GET,HEAD deb.debian.org:80/",
            "GET,HEAD security.debian.org:80/",
        ),
        "go": ("proxy.golang.org:443", "sum.golang.org:443"),
        "npm": ("registry.npmjs.org:443",),
        "pypi": ("pypi.org:443", "files.pythonhosted.org:443"),
    }
)
"""The words of each preset."""

NOT_BY_NAME: Mapping[str, str] = frozen_dict(
    {
        "github": "a connection to github.com permits a push with anybody's token, so it is no"
        " preset: if that is meant, allow github.com:443 by name",
    }
)
"""What one may look for among them, and why it is not there."""
