"""The benchmark of a pick's stages: its requests are picked, and its timers see all of the stages."""

import sys

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from benchmarks.pick.__main__ import _measure
from benchmarks.pick.envoy import exchange
from benchmarks.pick.stages import STAGES, Timers, timed
from benchmarks.pick.subject import MODEL, Subject
from picker.extproc.wire.names import DESTINATION


@pytest.mark.parametrize("size", [2048, 100_000])
async def test_each_request_is_picked_and_ends(size: int) -> None:
    subject = Subject(workers=3, size=size)
    await subject.warm_up(4)
    *request, response, end = subject.prepare(5)
    subject.answer(request)
    assert DESTINATION.encode() in subject.written
    assert subject.service.streams == 1
    subject.answer([response, end])
    assert subject.service.streams == 0
    assert subject.view.inflight.requests.sum() == 0
    assert subject.metrics.verdicts()["route", ""] == 5
    subject.close()


async def test_half_of_the_prompts_are_known_to_a_worker() -> None:
    subject = Subject(workers=3, size=32_768)
    await subject.warm_up(10)
    samples = subject.metrics.exposition("")[0].decode()
    [hits] = [line for line in samples.splitlines() if line.startswith("picker_predicted_hit_tokens_total")]
    assert f'model="{MODEL}"' in hits
    assert float(hits.split()[-1]) > 0
    subject.close()


def test_a_body_that_is_larger_than_a_frame_is_cut() -> None:
    pieces = list(exchange(0, b"x" * 40_000))
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x" * 40_000, end_of_stream=True))
    assert len(pieces[1]) == 3 * 9 + 5 + message.ByteSize()


async def test_every_stage_is_seen_and_most_of_a_pick_is_in_one() -> None:
    found = await _measure(workers=3, size=2048, requests=30)
    assert {stage.name for stage in found.stages} == set(STAGES)
    assert all(stage.us > 0 and stage.calls >= 1 for stage in found.stages)
    assert sum(stage.us for stage in found.stages) > 0.5 * found.whole_us


def test_timers_count_what_is_inside_once_and_leave_nothing_behind() -> None:
    timers = Timers()

    def waste() -> int:
        return sum(range(100_000))

    inner = timers.wrapped("inner", waste)
    outer = timers.wrapped("outer", lambda: inner() + inner())
    outer()
    spent, calls = timers.take()
    assert calls == {"inner": 2, "outer": 1}
    assert spent["outer"] < spent["inner"]
    assert timers.take() == ({}, {})
    before = sys.modules["picker.extproc.direct"].parse
    with timed(timers):
        assert sys.modules["picker.extproc.direct"].parse is not before
    assert sys.modules["picker.extproc.direct"].parse is before
