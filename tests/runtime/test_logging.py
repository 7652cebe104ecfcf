"""Logs are events with fields, one line each, and never tell what they were told to hide."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from podbot.runtime.logging import TEXT_LIMIT, StructuredLogger, get_logger


@pytest.fixture
def logger(caplog: pytest.LogCaptureFixture) -> StructuredLogger:
    caplog.set_level(logging.DEBUG, logger="podbot.test")
    return get_logger("podbot.test", component="tools.test")


def last(caplog: pytest.LogCaptureFixture) -> Any:
    return caplog.records[-1]


def test_a_record_has_a_line_for_people_and_fields_for_programs(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.info("container.started", name="wink-1", seconds=0.5, argv=("ls", "-l"), ok=True)

    record = last(caplog)
    assert record.levelno == logging.INFO
    assert record.name == logger.name == "podbot.test"
    assert record.event == "container.started"
    assert record.context == {
        "component": "tools.test",
        "name": "wink-1",
        "seconds": 0.5,
        "argv": ["ls", "-l"],
        "ok": True,
    }
    assert record.getMessage() == (
        'container.started component=tools.test name=wink-1 seconds=0.5 argv=["ls", "-l"] ok=true'
    )


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_each_level_is_the_standard_one(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    getattr(logger, level)("it.happened")

    assert last(caplog).levelname == level.upper()


def test_what_is_not_enabled_costs_no_formatting(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("nobody asked")

    caplog.set_level(logging.ERROR, logger="podbot.test")
    logger.info("it.happened", thing=Loud())

    assert not caplog.records


def test_a_bound_logger_carries_more_and_leaves_the_first_as_it_was(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    bound = logger.bind(session_id="s1")
    bound.info("it.happened", session_id="s2")

    assert last(caplog).context == {"component": "tools.test", "session_id": "s2"}
    assert bound.context == {"component": "tools.test", "session_id": "s1"}
    assert logger.context == {"component": "tools.test"}


def test_an_exception_brings_its_traceback(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise ValueError("no good")
    except ValueError as error:
        logger.error("it.failed", error=error)

    assert last(caplog).context["error"] == "ValueError: no good"
    assert 'raise ValueError("no good")' in caplog.text


def test_secrets_are_hidden_wherever_they_turn_up(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hunter2-hunter2"
    careful = logger.hiding([secret, "hunter2", "", "4711", "1"])
    careful = careful.bind(bound=f"x{secret}x")
    try:
        raise ValueError(f"bad password {secret}")
    except ValueError as error:
        careful.error(
            f"event.{secret}",
            error=error,
            whole=secret,
            env={"PASSWORD": secret, secret: 1, "short": "1", "number": 4711},
            deep=[({"a": secret.encode()},)],
            thing=object(),
            more=10,
        )

    record = last(caplog)
    assert secret not in caplog.text
    assert secret not in repr(vars(record))
    assert "hunter2" not in repr(vars(record))
    assert "4711" not in repr(vars(record))
    assert record.context["env"]["short"] == "[redacted]"
    assert record.context["more"] == 10  # a secret of one character is no part of others
    assert record.context["bound"] == "x[redacted]x"
    assert "ValueError: bad password [redacted]" in caplog.text


def test_a_logger_may_know_secrets_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("podbot.test", secrets=["s3cret"], component="x")
    with caplog.at_level(logging.INFO, logger="podbot.test"):
        logger.bind(a="s3cret").info("it.happened")

    assert "s3cret" not in caplog.text


def test_a_secret_is_not_left_over_by_the_cut(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.hiding(["secret-word"]).info("it.happened", text="x" * (TEXT_LIMIT - 6) + "secret-word")

    assert "secret" not in caplog.text


def test_hostile_text_fakes_no_line_and_no_colour(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.info("said", text="done\nERROR fake\x1b[2J\u202e", word='a="b"', empty="")

    line = last(caplog).getMessage()
    assert line.isascii()
    assert line.isprintable()
    assert line == (
        "said component=tools.test"
        ' text="done\\nERROR fake\\u001b[2J\\u202e" word="a=\\"b\\"" empty=""'
    )


def test_long_and_deep_values_are_cut_short(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    deep: object = "end"
    for _ in range(50):
        deep = [deep]
    logger.info("said", text="x" * 10_000_000, many=list(range(10_000)), deep=deep)

    context = last(caplog).context
    assert context["text"] == "x" * TEXT_LIMIT + "…"
    assert context["many"] == list(range(50))
    assert len(last(caplog).getMessage()) < 3 * TEXT_LIMIT


def test_what_cannot_be_shown_stops_nobody(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no words")

    logger.info("said", thing=[Broken()], more=1)

    assert last(caplog).context["thing"] == "<a list that cannot be shown>"
    assert last(caplog).context["more"] == 1


def test_percent_signs_mean_nothing(
    logger: StructuredLogger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.info("said.%s", text="100%d")

    assert last(caplog).getMessage() == "said.%s component=tools.test text=100%d"


def test_nothing_is_printed_unless_the_application_says_so() -> None:
    code = (
        "from podbot.runtime.logging import get_logger\n"
        "get_logger('podbot.x').error('it.failed', error=ValueError('x'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert (ran.stdout, ran.stderr) == (b"", b"")
