"""Which paths the policy hid from a sandbox: nothing at or below them is ever touched.

Only words are compared. Each folder is looked up once, as thousands of paths lie in a few of them.
"""

from __future__ import annotations

from collections.abc import Iterable


class Hidden:
    """Absolute paths that were hidden, with all below them."""

    def __init__(self, paths: Iterable[str]):
        self._paths = frozenset(paths)
        self._folders: dict[str, bool] = {}

    def covers(self, where: str) -> bool:
        """Whether an absolute path is one of these or lies below one."""
        if not self._paths:
            return False
        return where in self._paths or self._covers_folder(where.rpartition("/")[0])

    def _covers_folder(self, folder: str) -> bool:
        known = self._folders.get(folder)
        if known is None:
            above = folder
            while above and above not in self._paths:
                above = above.rpartition("/")[0]
            known = self._folders[folder] = bool(above)
        return known

    def below(self, where: str) -> list[str]:
        """Those that lie below a path."""
        return [path for path in self._paths if path.startswith(f"{where}/")]
