"""Which tests of the suite `make test` leaves to CI, for these backends.

The suite itself belongs to whoever writes a backend, so it knows no marker of this project. What is
left out waits or works for seconds in the same guest, behind a face that another class tries.
"""

from __future__ import annotations

import pytest

MADE_OF_TRIED_HALVES = ("TestAsyncLocal", "TestAsyncOverStream")
"""Their backends are tried behind the face that blocks, and that face over memory and overlays."""

SLOW_EVERYWHERE_ELSE = ("test_code_that_will_not_stop_costs_the_kernel",)
"""Tried in `make test` for one class alone."""
ONE = "TestOverlay"

SLOW_BEHIND_ASYNC = (
    "test_a_runaway_pattern_is_cut_by_time",
    "test_a_timeout_kills_all_it_started",
    "test_a_very_deep_tree_is_walked_whole_and_removed",
    "test_closing_it_kills_all_it_started",
    "test_ctrl_c_in_a_read_kills_nothing_and_loses_nothing",
    "test_edits_agree_with_python",
    "test_globs_agree_with_what_they_mean",
    "test_grep_agrees_with_python",
    "test_one_ahead_of_its_reader_waits_and_nothing_is_lost",
    "test_stdin_may_be_large",
    "test_the_limit_on_time_holds_when_a_call_names_none",
    "test_very_long_lines_do_not_break_the_sandbox",
    "test_whatever_lies_in_it_it_can_be_closed",
)
"""Tried in `make test` for the class that blocks."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None:
            name, group = item.originalname, item.cls.__name__
            behind_async = group.startswith("TestAsync") and name in SLOW_BEHIND_ASYNC
            elsewhere = name in SLOW_EVERYWHERE_ELSE and group != ONE
            if behind_async or elsewhere or group in MADE_OF_TRIED_HALVES:
                item.add_marker(pytest.mark.slow)
