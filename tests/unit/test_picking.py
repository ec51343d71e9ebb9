"""What a pick hands to the decision and to the books."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

import picker.placing
from picker.config import Config
from picker.extproc.actions import Pick
from picker.extproc.events import Picked
from picker.fleet.lengths import PRIOR_TOKENS
from picker.fleet.view import View
from picker.picking import Picker
from picker.placing import MOST_GUESSED_TOKENS
from picker.prompts.reader import PromptReader
from picker.scheduling.decide import decide
from picker.scheduling.request import SchedulingRequest
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import Load, fleet

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def view() -> View:
    return fleet(1)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SchedulingRequest]]:
    """The requests that decisions were made about."""
    found: list[SchedulingRequest] = []

    def note(request: SchedulingRequest, *rest: Any) -> Any:
        found.append(request)
        return decide(request, *rest)

    monkeypatch.setattr(picker.placing, "decide", note)
    yield found


@pytest_asyncio.fixture
async def asked(view: View, metrics: Metrics) -> AsyncIterator[Picker]:
    asked = Picker(Config(), view, PromptReader({}), metrics, lambda: False)
    yield asked
    asked.close()


async def pick(asked: Picker, path: str, body: bytes, **headers: str) -> Picked:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await asked.pick(Pick({":method": "POST", ":path": path, **named}, body))
    assert isinstance(answer, Picked) and answer.endpoints
    return answer


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "llama", **fields}).encode()


async def test_an_answer_is_expected_to_be_as_long_as_the_models_mean(
    view: View, asked: Picker, decided: list[SchedulingRequest]
) -> None:
    await pick(asked, COMPLETIONS, body(prompt="x", max_tokens=100_000))
    for _ in range(100):
        view.lengths.note("llama", generated_tokens=8000, finished=10)
    await pick(asked, COMPLETIONS, body(prompt="x", max_tokens=100_000))
    await pick(asked, CHAT, body(messages=[{"role": "user", "content": "x"}]))
    await pick(asked, COMPLETIONS, body(prompt="x", max_tokens=5, n=3))
    await pick(asked, "/v1/embeddings", body(input="x"))
    mean = view.lengths.mean("llama")
    assert 700 < mean < 800
    assert [each.expected_output_tokens for each in decided] == [PRIOR_TOKENS, mean, mean, 15, 0]


@pytest.mark.parametrize(
    ("path", "sent", "tokens"),
    [
        (CHAT, body(messages="nobody understands " * 400), 1900),
        (CHAT, b"\x28\xb5\x2f\xfd" + b"packed " * 400, 700),
        ("/vllm.grpc.engine.VllmEngine/Generate", b"\x00" * 4000, 1000),
        ("/v1/embeddings", body(input="word " * 800), 1000),
        ("/v1/audio/transcriptions", b"RIFF" * 1_000_000, MOST_GUESSED_TOKENS),
    ],
)
async def test_a_prompt_that_is_not_known_is_in_the_books_by_its_bytes(
    view: View, asked: Picker, path: str, sent: bytes, tokens: int
) -> None:
    encoding = {"content_encoding": "x-unknown"} if sent.startswith(b"\x28\xb5") else {}
    answer = await pick(asked, path, sent, **encoding)
    assert view.inflight.context_tokens.sum() == pytest.approx(tokens, rel=0.02)
    asked.release(answer.placement)
    assert view.inflight.context_tokens.sum() == 0


@pytest.mark.parametrize(
    "path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/chat/completions/render"]
)
async def test_calls_that_compute_nothing_weigh_nothing(view: View, asked: Picker, path: str) -> None:
    await pick(asked, path, body(prompt="word " * 800))
    assert view.inflight.context_tokens.sum() == 0


async def test_what_is_placed_counts_as_predicted(view: View, asked: Picker) -> None:
    [slot] = view.slots()
    sent = body(prompt=list(range(640)))
    view.reuse.counted(slot, looked_up_tokens=1280, reused_tokens=640, now=time.monotonic())
    for _ in range(2):
        await pick(asked, COMPLETIONS, sent)
    shares = view.reuse.shares([slot], time.monotonic())
    assert shares is not None
    assert shares.predicted == pytest.approx(0.5, abs=0.01)


class TestUsage:
    """What a response tells of itself, where the gateway lets us see it."""

    @pytest.mark.parametrize(
        ("tail", "result"),
        [(b'{"usage":{"prompt_tokens":640}}', "read"), (b"data: [DONE]", "missing"), (b'{"usage":[]}', "unreadable")],
    )
    async def test_it_is_counted_by_how_it_could_be_read(
        self, asked: Picker, metrics: Metrics, tail: bytes, result: str
    ) -> None:
        answer = await pick(asked, COMPLETIONS, body(prompt="x"))
        asked.first_byte(answer.placement, 200, "")
        asked.answered(answer.placement, tail)
        counts = {
            each: metrics.registry.get_sample_value("picker_usage_total", {"result": each})
            for each in ("read", "missing", "unreadable")
        }
        assert counts == {each: float(each == result) for each in counts}

    async def test_errors_are_no_answers(self, asked: Picker, metrics: Metrics) -> None:
        answer = await pick(asked, COMPLETIONS, body(prompt="x"))
        asked.first_byte(answer.placement, 503, "")
        asked.answered(answer.placement, b'{"usage":[]}')
        assert metrics.registry.get_sample_value("picker_usage_total", {"result": "unreadable"}) == 0

    @pytest.mark.parametrize("counts_itself", [False, True])
    async def test_an_engine_without_counters_is_judged_by_it(
        self, view: View, asked: Picker, metrics: Metrics, counts_itself: bool
    ) -> None:
        [slot] = view.slots()
        view.update_load(slot, Load(1, looked_up_tokens=int(counts_itself)), 0.0)
        told = b'{"usage":{"prompt_tokens":640,"completion_tokens":9000,"prompt_tokens_details":{"cached_tokens":320}}}'
        for _ in range(2):
            answer = await pick(asked, COMPLETIONS, body(prompt=list(range(640))))
            asked.first_byte(answer.placement, 200, "")
            asked.answered(answer.placement, told)
        by_model = {"model": "llama"}
        assert metrics.registry.get_sample_value("picker_told_cached_tokens_total", by_model) == 640
        assert metrics.registry.get_sample_value("picker_told_predicted_tokens_total", by_model) == 640
        shares = view.reuse.shares([slot], time.monotonic())
        assert (shares is None) == counts_itself
        assert shares is None or shares.reused == pytest.approx(0.5, abs=0.01)
        assert (view.lengths.mean("llama") == PRIOR_TOKENS) == counts_itself
