"""Decisions to files: rotation, sampling, bounds, what happens when the disk is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from picker.config import Config
from picker.events.decided import Moment
from picker.events.files import LineFile
from picker.events.record import Record
from picker.events.recorder import Recorder
from picker.events.settings import Events
from picker.events.sink import Sink
from picker.supervisor import config_of


def sink(folder: Path, **settings: Any) -> tuple[Sink, Recorder, Path]:
    file = folder / "decisions.jsonl"
    events = Events(file=str(file), **settings)
    recorder = Recorder(events, "p")
    return Sink(events, recorder, {}, None), recorder, file


def records(file: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in file.read_bytes().splitlines()]


async def test_what_has_ended_is_written_as_lines_of_json(tmp_path: Path) -> None:
    written, recorder, file = sink(tmp_path)
    recorder.refused("bad-request", 400, Moment(0.0, 1.0))
    recorder.passed("fleet-unread", Moment(0.0, 1.0))
    await written.flush()
    assert [(each.verdict, each.outcome.end) for each in records(file)] == [("refuse", "refused"), ("pass", "passed")]


async def test_beyond_the_queues_bound_decisions_are_dropped_and_counted(tmp_path: Path) -> None:
    written, recorder, file = sink(tmp_path, queue=3)
    for _ in range(5):
        recorder.passed("x", Moment(0.0, 1.0))
    await written.flush()
    assert len(records(file)) == 3
    assert written.dropped == 2


async def test_only_what_went_well_is_sampled() -> None:
    events = Events(file="-", sample=0.25)
    written = Sink(events, Recorder(events, "p"), {}, None)
    assert 200 < sum(written._is_sampled(number) for number in range(1000)) < 300
    assert not any(Sink(Events(file="-", sample=0.0), Recorder(events, "p"), {}, None)._is_sampled(n) for n in range(9))


async def test_a_full_disk_costs_decisions_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, recorder, file = sink(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "write", full)
        recorder.passed("x", Moment(0.0, 1.0))
        await written.flush()
    assert written.dropped == 1
    recorder.passed("y", Moment(0.0, 1.0))
    await written.flush()
    assert [each.reason for each in records(file)] == ["y"]


def test_full_files_are_set_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    file = LineFile(str(tmp_path / "d"), most_bytes=4, files=3)
    for number in range(5):
        if file.is_full:
            file.rotate()
        file.write([b"%d\n" % number] * 2)
    file.close()
    assert {path.name: path.read_text()[0] for path in tmp_path.iterdir()} == {"d": "4", "d.1": "3", "d.2": "2"}


def test_each_process_writes_a_file_of_its_own() -> None:
    config = Config(events=Events(file="/var/log/decisions.jsonl"))
    files = [config_of(config, number).events.file for number in range(2)]
    assert files == ["/var/log/decisions.jsonl", "/var/log/decisions-1.jsonl"]


@pytest.mark.parametrize("settings", [{"replayable": True}, {"ring": 0, "file": "x"}, {"ring": 0, "stream_length": 1}])
def test_settings_that_make_no_sense_together_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"needs a file|ring must not be 0"):
        Events(**settings)
