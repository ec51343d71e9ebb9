"""The log: one line for each event, whatever is in it, from the level that is set."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from picker.telemetry.log import configure, set_level


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    before = structlog.get_config()
    yield
    set_level("info")
    structlog.configure(**before)


def logger(form: Any, level: str = "info") -> Any:
    configure(form, level)
    return structlog.get_logger().bind()


@pytest.mark.parametrize("form", ["console", "json"])
def test_what_is_logged_stays_on_one_line(form: Any, capsys: pytest.CaptureFixture[str]) -> None:
    forged = "w1\n2026-01-01 [error] forged\r\x1b[31mred\u2028next"
    logger(form).info("worker_retired", worker=forged)
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and "\x1b[31m" not in told
    assert "forged" in told


def test_in_json_values_are_values(capsys: pytest.CaptureFixture[str]) -> None:
    logger("json").warning("x", count=3, names=["a", "b"])
    told = json.loads(capsys.readouterr().err)
    assert (told["event"], told["level"], told["count"], told["names"]) == ("x", "warning", 3, ["a", "b"])


def test_the_level_can_change_while_running(capsys: pytest.CaptureFixture[str]) -> None:
    log = logger("json", "warning")
    log.info("quiet")
    set_level("debug")
    log.debug("loud")
    log.error("louder")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["loud", "louder"]


def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        log = logger("json")
        with pytest.raises(OSError):
            print("a line", file=full, flush=True)
        for _ in range(1000):
            log.error("disk_full", text="x" * 100)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
