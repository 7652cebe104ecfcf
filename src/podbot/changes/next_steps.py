"""What to do next, as errors of the library say it: in its calls, never in words of a shell.

The command line puts its own words in their place (`cli/remedies.py`), so each is here once.
"""

PATHS = "name a path relative to the target, an absolute path, or a glob such as 'src/**/*.py'"
RUNS = "`entries()` gives those there are"
LATEST = f"{RUNS}; `last` is the latest"
START = "start one: `api.run`, or `sandbox.open` on a backend that keeps changes apart"
APPLIED = "`applications` says what was applied from a run"
SMALLER = "save some of them by path and leave out the largest; `changes` has their sizes"
SAVED_ALONE = "load only what `save` wrote, whole and unchanged"
WHICH_FOLDER = "say which folder is meant (targets=), or leave out within= for that one"
ALLOW = "look at it, then allow these paths (allow_flagged=…) or leave them out"
ALLOW_IN_REVIEW = "look at it, then allow these paths (allow=…) or leave them out"


LOADED = "`review.load('FILE.tar', 'DIR')`"


def save(run: str) -> str:
    """To save what cannot be applied."""
    return f"save the changes: `review.open({run!r}).save('FILE.tar')`"


def elsewhere(run: str) -> str:
    """To apply what has lost its target."""
    return (
        "move it back to where it was, and do this again; or take the changes to another folder:"
        f" `review.open({run!r}).save('FILE.tar')`, then {LOADED}"
    )
