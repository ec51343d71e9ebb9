"""What a prompt may cost: beyond a size it is known by its beginning, by its text or not at all, and placed anyway."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from picker.config import Config, Limits
from picker.extproc.actions import Pick
from picker.extproc.events import Picked
from picker.fleet.view import View
from picker.picking import Picker
from picker.prompts import chain
from picker.prompts.incremental import IncrementalReader
from picker.prompts.prefix import Rung
from picker.prompts.reader import PromptReader, never
from picker.redisview.records import WorkerRecord, WorkerState
from picker.requests.body import MOST_SCALAR_BYTES, MOST_SKIPPED_VALUES, MOST_VALUES
from picker.requests.model import InferenceRequest, TextPrompt, TokenPrompt
from picker.requests.openai_completions import MOST_ID_BYTES
from picker.requests.read import read_request
from picker.requests.rewrite import splice_model
from picker.server import memo_readings, prompt_reader
from picker.telemetry.metrics import Metrics
from tests import tiny_models

MODEL = tiny_models.load("chatml")
SCOPE = chain.scope("m")
MEGABYTE = 1 << 20
PATHS = {
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/messages": "messages",
    "/generate": "input_ids",
}


def post(path: str, body: bytes) -> InferenceRequest:
    return read_request({":method": "POST", ":path": path}, body)


def listed(element: bytes, count: int) -> bytes:
    return b"[" + element + (b"," + element) * (count - 1) + b"]"


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


class TestValues:
    """JSON that holds many small values costs far more than its bytes."""

    @pytest.mark.parametrize("element", [b"1", b"{}", b"[[]]", b'""'])
    @pytest.mark.parametrize(("path", "name"), PATHS.items())
    def test_of_a_body_of_millions_only_the_model_is_read(
        self, path: str, name: str, element: bytes, traced: None
    ) -> None:
        body = b'{"model":"m","%b":%b}' % (name.encode(), listed(element, MOST_SKIPPED_VALUES + 1))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        request = post(path, body)
        assert (request.model, request.prompt) == ("m", None)
        assert tracemalloc.get_traced_memory()[1] - before < MEGABYTE

    def test_where_its_model_is_not_to_be_found_any_worker_has_to_do(self) -> None:
        many = listed(b"1", MOST_SKIPPED_VALUES)
        assert post("/v1/completions", b'{"a":%b,"model":"m","prompt":%b}' % (many, many)).model is None

    def test_its_model_is_replaced_all_the_same(self) -> None:
        body = b'{"prompt":%b,"model":"m","stream":true}' % listed(b"1", MOST_SKIPPED_VALUES + 1)
        assert splice_model(body, "other") == body.replace(b'"m"', b'"other"')
        assert splice_model(body.replace(b'"model"', b'"modal"'), "other") is None

    CROWDED = (
        ("/v1/chat/completions", '{"messages":%s}'),
        ("/v1/chat/completions", '{"messages":[{"role":"user","content":%s}]}'),
        ("/v1/chat/completions", '{"messages":[{"role":"user","content":""}],"tools":%s}'),
        ("/v1/chat/completions", '{"messages":[{"role":"user","content":""}],"documents":%s}'),
        ("/v1/chat/completions", '{"messages":[{"role":"user","content":""}],"chat_template_kwargs":{"a":%s}}'),
        ("/v1/completions", '{"prompt":%s}'),
        ("/v1/responses", '{"input":%s}'),
        ("/v1/responses", '{"input":"x","tools":%s}'),
        ("/v1/responses", '{"input":"x","reasoning":{"a":%s}}'),
        ("/v1/messages", '{"messages":%s}'),
        ("/v1/messages", '{"messages":[{"role":"user","content":"x"}],"system":%s}'),
        ("/v1/messages", '{"messages":[{"role":"user","content":"x"}],"output_config":{"a":%s}}'),
    )

    @pytest.mark.parametrize(("path", "body"), CROWDED)
    def test_a_prompt_of_many_values_is_left_to_the_engine(self, path: str, body: str, traced: None) -> None:
        data = (body % listed(b'"xy"', MOST_VALUES + 1).decode()).encode()
        request = post(path, data)
        assert request.prompt
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert request.prompt.read() is None
        # Copies of its bytes, no objects.
        assert tracemalloc.get_traced_memory()[1] - before < 4 * len(data)

    def test_a_text_full_of_commas_is_one_value(self) -> None:
        text = "1," * MOST_VALUES
        request = post("/v1/completions", json.dumps({"prompt": text}).encode())
        assert request.prompt and request.prompt.read() == TextPrompt(text)

    def test_names_that_are_texts_are_none(self) -> None:
        long = "x" * MOST_SCALAR_BYTES
        body: dict[str, Any] = {"model": long, "cache_salt": long, "prompt": "x"}
        request = post("/v1/completions", json.dumps(body).encode())
        assert (request.model, request.cache_salt) == (None, "")

    def test_salts_are_not_kept(self, traced: None) -> None:
        before = tracemalloc.get_traced_memory()[0]
        scopes = {chain.scope("m", "", f"{number}{'x' * MEGABYTE}") for number in range(20)}
        assert len(scopes) == 20
        assert tracemalloc.get_traced_memory()[0] - before < MEGABYTE


class TestIds:
    """Prompts of token ids."""

    COUNT = MOST_ID_BYTES // 4

    @pytest.mark.parametrize("shape", ["[%s]", "[ [%s],[7,8]]"])
    @pytest.mark.parametrize(("path", "name"), [("/v1/completions", "prompt"), ("/generate", "input_ids")])
    def test_of_very_many_the_first_are_read_and_the_others_estimated(self, path: str, name: str, shape: str) -> None:
        ids = [100 + number % 900 for number in range(2 * self.COUNT)]
        listed_ids = shape % ",".join(map(str, ids))
        request = post(path, f'{{"{name}":{listed_ids}}}'.encode())
        prompt = request.prompt and request.prompt.read()
        assert isinstance(prompt, TokenPrompt)
        assert prompt.tokens == ids[: len(prompt.tokens)]
        assert len(prompt.tokens) == pytest.approx(self.COUNT, abs=1)
        assert len(prompt.tokens) + prompt.unread == pytest.approx(len(ids), abs=2)

    def test_a_chain_of_the_first_is_exact_and_known_to_be_a_part(self) -> None:
        found = PromptReader({}).read(TokenPrompt(range(130), unread=870), "m", "", "")
        assert (found.rung, found.exact, found.prompt_tokens) == (Rung.PART, True, 1000)
        assert found.blocks == chain.index_blocks(SCOPE, range(130))

    @pytest.mark.parametrize("prompt", ["[]", "[[]]", "[[],[1]]", '[1,"x"]', "[[1,[2]]]", "[1,[2]]", "[null]"])
    def test_what_is_no_list_of_ids_is_left_to_the_engine(self, prompt: str) -> None:
        request = post("/v1/completions", f'{{"prompt":{prompt}}}'.encode())
        assert request.prompt and request.prompt.read() is None

    @pytest.mark.parametrize("filler", [b"9", b" "])
    def test_a_list_without_a_place_to_cut_is_left_to_the_engine(self, filler: bytes) -> None:
        request = post("/v1/completions", b'{"prompt":[1%b,2]}' % (filler * (MOST_ID_BYTES + 1)))
        assert request.prompt and request.prompt.read() is None


class TestTexts:
    """Prompts of text."""

    LIMIT = 3000

    def reader(self) -> IncrementalReader:
        return IncrementalReader(MEGABYTE, MEGABYTE, self.LIMIT)

    @pytest.mark.parametrize("family", tiny_models.FAMILIES)
    @pytest.mark.parametrize("unit", ["word ", "a", "é", "🙂", "\n", "x = [1, 2]\n    return x"])
    def test_of_a_piece_without_a_cut_the_beginning_is_known(self, family: str, unit: str) -> None:
        model = tiny_models.load(family)
        text = unit * (3 * self.LIMIT // len(unit))
        found = self.reader().read(text, SCOPE, model, never, add_special_tokens=True)
        tokens = model.encode(text, add_special_tokens=True)
        whole = chain.index_blocks(SCOPE, tokens)
        assert (found.rung, found.exact) == (Rung.PART, True)
        assert found.blocks == whole[: len(found.blocks)]
        assert len(whole) // 3 - 2 <= len(found.blocks) < len(whole) // 2 + 1

    def test_wherever_it_is_cut_no_block_depends_on_what_follows(self) -> None:
        text = "the quick brown fox " * 120
        whole = chain.index_blocks(SCOPE, MODEL.encode(text, add_special_tokens=True))
        for limit in range(1200, 1300):
            found = IncrementalReader(0, 0, limit).read(text, SCOPE, MODEL, never, add_special_tokens=True)
            assert found.blocks == whole[: len(found.blocks)] != []

    def test_what_comes_before_and_not_what_follows_counts_too(self) -> None:
        turns = [f"<|im_start|>user\n{number} {'word ' * 100}<|im_end|>\n" for number in range(20)]
        text = "".join([*turns, "a" * 2 * self.LIMIT, *turns])
        found = self.reader().read(text, SCOPE, MODEL, never, add_special_tokens=False)
        whole = chain.index_blocks(SCOPE, MODEL.encode(text, add_special_tokens=False))
        before = len(MODEL.encode("".join(turns), add_special_tokens=False)) // chain.INDEX_TOKENS
        assert found.blocks == whole[: len(found.blocks)]
        assert before < len(found.blocks) < len(whole) - before

    def test_no_more_than_the_bound_is_tokenised_in_one_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []
        encode_all = type(MODEL).encode_all

        def spied(model: Any, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
            asked.extend(map(len, texts))
            return encode_all(model, texts, add_special_tokens=add_special_tokens)

        monkeypatch.setattr(type(MODEL), "encode_all", spied)
        self.reader().read("word " * 100_000, SCOPE, MODEL, never, add_special_tokens=True)
        assert asked == [self.LIMIT]

    def test_what_is_remembered_of_it_is_true_of_shorter_prompts(self) -> None:
        reader, text = self.reader(), "word " * 10_000
        reader.read(text, SCOPE, MODEL, never, add_special_tokens=True)
        short = text[: self.LIMIT]
        found = reader.read(short, SCOPE, MODEL, never, add_special_tokens=True)
        tokens = MODEL.encode(short, add_special_tokens=True)
        assert reader.statistics()[0].hits == 1
        assert (found.rung, found.prompt_tokens) == (Rung.TOKENS, len(tokens))
        assert found.blocks == chain.index_blocks(SCOPE, tokens)

    def test_a_text_that_is_matched_as_text_has_no_more_blocks_than_its_bound(self) -> None:
        reader = PromptReader({"m": MODEL}, most_chars=10_000)
        found = reader.read(TextPrompt("x" * 50_000), "m", "", "")
        assert (found.rung, found.prompt_tokens) == (Rung.TEXT, 12_500)
        assert len(found.blocks) == 10_000 // chain.TEXT_BLOCK_BYTES

    def test_a_prompt_beyond_the_bound_in_bytes_is_not_read(self) -> None:
        reader = PromptReader({}, most_bytes=1000)
        rungs = [reader.read(_completion("x" * size).prompt, "m", "", "").rung for size in (998, 999)]
        assert rungs == [Rung.TEXT, Rung.LOAD]


def _completion(prompt: str) -> InferenceRequest:
    return post("/v1/completions", json.dumps({"model": "m", "prompt": prompt}).encode())


class TestSettings:
    """From the configuration to the reader, and from its memos to the gauges."""

    @pytest.mark.parametrize(
        ("limits", "rung"),
        [
            (Limits(), Rung.TOKENS),
            (Limits(max_prompt_bytes=4000), Rung.LOAD),
            (Limits(max_prompt_chars=4000), Rung.TEXT),
            (Limits(max_segment_chars=4000), Rung.PART),
        ],
    )
    def test_each_limit_says_what_is_too_much(self, limits: Limits, rung: Rung) -> None:
        assert prompt_reader({"m": MODEL}, limits).read(_completion("word " * 1000).prompt, "m", "", "").rung is rung

    @pytest.mark.parametrize("limits", [Limits(prompt_states_bytes=0), Limits(prompt_tokens_bytes=0), Limits()])
    def test_memory_that_is_not_given_is_not_taken(self, limits: Limits) -> None:
        reader = prompt_reader({"m": MODEL}, limits)
        reader.read(TextPrompt("word " * 1000), "m", "", "")
        held = [memo.bytes > 0 for memo in reader.statistics()]
        assert held == [limits.prompt_states_bytes > 0, limits.prompt_tokens_bytes > 0]

    def test_gauges_tell_how_the_memos_do(self) -> None:
        reader = prompt_reader({"m": MODEL}, Limits())
        for _ in range(3):
            reader.read(TextPrompt("word " * 1000), "m", "", "")
        readings = {name: value for name, (_, value) in memo_readings(reader).items()}
        assert readings.pop("memo_bytes") > 0
        assert readings == {
            "memo_evictions_total": 0,
            "memo_chain_hits_total": 2,
            "memo_chain_misses_total": 1,
            "memo_tokens_hits_total": 0,
            "memo_tokens_misses_total": 1,
        }


@pytest.mark.parametrize("prompt", [listed(b"1", MOST_SKIPPED_VALUES + 1), b'"%b"' % (b"word " * 4 * MEGABYTE)])
async def test_a_request_whose_prompt_is_too_much_is_placed_by_load(prompt: bytes) -> None:
    view, metrics = View(), Metrics()
    worker = WorkerRecord(worker="a", epoch=1, endpoint="10.0.0.5:8000", state=WorkerState.READY, models=("m",))
    view.admit(worker, 0.0)
    picker = Picker(Config(), view, prompt_reader({"m": MODEL}, Limits()), metrics, lambda: False)
    body = b'{"model":"m","prompt":%b}' % prompt
    try:
        answer = await picker.pick(Pick({":method": "POST", ":path": "/v1/completions"}, body))
    finally:
        picker.close()
    assert isinstance(answer, Picked) and answer.endpoints == ("10.0.0.5:8000",)
    assert metrics.registry.get_sample_value("picker_prefix_rung_total", {"rung": "load"}) == 1
