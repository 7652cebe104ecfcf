"""Files by which git finds commits: two versions of one are two histories, never lines to merge.

Which of them is kept decides which commits a name leads to; the others stay in the repository, for
a while, where nobody sees them. Says so. Looks at paths and bytes, runs no git.
"""

from __future__ import annotations

from podbot.changes import late

_REF = late.expression(r"(?:\A|/)[^/]*\.git/(?:.+/)?(?:[A-Z_]*HEAD|packed-refs|(?:refs|logs)/.+)\Z")
_COMMIT = late.expression(rb"\A([0-9a-f]{40}|[0-9a-f]{64})\n?\Z")
_SHORT = 12


def is_one(where: str) -> bool:
    """Whether git reads at an absolute path where a branch is, or was."""
    return _REF.search(where) is not None


def fate_of_commits(host: bytes, run: bytes) -> str:
    """What becomes of commits whichever version is kept."""
    theirs, ours = _commit(host), _commit(run)
    if theirs is None or ours is None:
        return "git finds commits by it, and two histories are no lines to merge"
    return (
        f"leaving it out leaves this run's commit {ours} without a name, and overwriting it"
        f" {theirs}, which is there now: `git branch NAME COMMIT` gives either one"
    )


def _commit(data: bytes) -> str | None:
    found = _COMMIT.match(data)
    return found[1][:_SHORT].decode() if found else None
