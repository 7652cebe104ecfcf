"""Where the tests' chance comes from: one seed a run, which the commit gives.

Every change meets new examples, and whoever reads the seed in a run's head meets the same ones:
`PODBOT_SEED=… make test`. Each test draws from the seed and its own name, whatever worker or
order it runs in. This module knows nothing of podbot.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, seed, settings

VARIABLE = "PODBOT_SEED"

# How long an example takes says how busy the machine is, and nothing about podbot. That it never
# derandomizes is said because Hypothesis would, wherever CI is in the environment.
settings.register_profile(
    "podbot",
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def of_run(checkout: Path) -> str:
    """The seed of this run: the one that was handed on, else the commit, else any."""
    return os.environ.get(VARIABLE) or _commit(checkout) or secrets.token_hex(8)


def _commit(checkout: Path) -> str:
    """The commit that is checked out, in short; nothing where there is none."""
    git = ["git", "-C", str(checkout), "rev-parse", "--short=16", "HEAD"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if (checkout / ".git").exists() else ""


def number(name: str) -> int:
    """What the test of this name draws from."""
    run = os.environ[VARIABLE]
    return int.from_bytes(hashlib.sha256(f"{run} {name}".encode("utf-8", "replace")).digest()[:8])


def give(item: pytest.Item) -> None:
    """Have the examples of a test be those of the run's seed."""
    function = getattr(item, "function", None)
    if function is not None and is_hypothesis_test(function):
        seed(number(item.nodeid))(function)


def _forget_loaded_code() -> None:
    """Keep examples from depending on what is loaded.

    Hypothesis also draws constants that it reads out of loaded modules, and which of podbot's those
    are depends on the tests that ran before. There is no setting for it.
    """
    from hypothesis.internal.conjecture import providers

    if hasattr(providers, "is_local_module_file"):  # not in every version
        providers.is_local_module_file = lambda path: False


_forget_loaded_code()
