"""What building a wheel adds: manual pages, made then from what `--help` says, and completion."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETION = {
    "podbot.bash": "share/bash-completion/completions/podbot",
    "podbot.zsh": "share/zsh/site-functions/_podbot",
    "podbot.fish": "share/fish/vendor_completions.d/podbot.fish",
}
"""Where each shell looks, below the place that everything is installed to."""


class SharedFiles(BuildHookInterface[Any]):
    """Puts both where a system looks for them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the pages, and name all that is to be installed."""
        root = Path(self.root)
        sys.path[:0] = [str(root / "src"), str(root / "docs")]
        try:
            import make_manual

            self._made = tempfile.TemporaryDirectory(prefix="podbot-manual-")
            pages = make_manual.write(Path(self._made.name))
        finally:
            del sys.path[:2]
        shared = build_data["shared_data"]
        shared.update({str(page): f"share/man/man1/{page.name}" for page in pages})
        source = root / "src" / "podbot" / "data" / "completion"
        shared.update({str(source / name): place for name, place in COMPLETION.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The pages are in the wheel now."""
        self._made.cleanup()
