"""From headers and body to what a client asks for, API by API."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from picker.requests.compression import MOST_BYTES, unpack
from picker.requests.errors import error_body
from picker.requests.headers import MOST_NAME_CHARS
from picker.requests.model import ChatPrompt, Dialect, InferenceRequest, Prompt, TextPrompt, TokenPrompt
from picker.requests.read import BadRequest, dialect_of, read_request
from picker.requests.rewrite import splice_model


def post(path: str, body: Any, **headers: str) -> InferenceRequest:
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_request({":method": "POST", ":path": path, **named}, data)


def prompt(path: str, **fields: Any) -> Prompt | None:
    pending = post(path, {"model": "m", **fields}).prompt
    return pending.read() if pending else None


HELLO = [{"role": "user", "content": "hello"}]


class TestPaths:
    """Which API a path belongs to."""

    @pytest.mark.parametrize(
        "path",
        ["/v1/chat/completions", "/v1/chat/completions/", "/v1/chat/completions?a=/b", "/team/x/v1/chat/completions"],
    )
    def test_queries_slashes_and_prefixes_do_not_matter(self, path: str) -> None:
        request = post(path, {"model": "m", "messages": HELLO})
        assert request.dialect is Dialect.OPENAI
        assert request.prompt and request.prompt.read() == ChatPrompt(HELLO)

    def test_where_a_gateway_has_rewritten_the_path_the_clients_own_counts(self) -> None:
        request = post("/backend", {"model": "m"}, x_original_path="/v1/messages")
        assert (request.dialect, request.model) == (Dialect.ANTHROPIC, "m")

    @pytest.mark.parametrize("path", ["/", "", "/v1/models", "/v1/xcompletions", "/v1/responses/resp_1/cancel", "//"])
    def test_an_unknown_path_is_placed_by_load(self, path: str) -> None:
        assert post(path, b"\x00 no JSON") == InferenceRequest(Dialect.UNKNOWN, unread_bytes=9)

    def test_vllms_grpc_is_placed_by_load(self) -> None:
        message = b"\x00\x00\x00\x00\x05\x0a\x03abc"
        request = post("/vllm.grpc.engine.VllmEngine/Generate", message, content_type="application/grpc+proto")
        assert request == InferenceRequest(Dialect.UNKNOWN, unread_bytes=len(message))

    @pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
    def test_what_has_no_body_is_placed_by_load(self, method: str) -> None:
        request = read_request({":method": method, ":path": "/v1/responses"}, b"")
        assert request == InferenceRequest(Dialect.OPENAI)

    def test_errors_follow_the_path_before_there_is_a_body(self) -> None:
        assert dialect_of({":path": "/v1/messages?beta=true"}) is Dialect.ANTHROPIC
        assert dialect_of({":path": "/v1/completions"}) is Dialect.OPENAI
        assert dialect_of({}) is Dialect.UNKNOWN


class TestTerms:
    """What the headers say."""

    def test_newer_header_names_win_over_older_ones(self) -> None:
        headers = {"x-llm-d-inference-fairness-id": "new", "x-gateway-inference-fairness-id": "old"}
        assert read_request({":path": "/", **headers}, b"").terms.tenant == "new"

    def test_all_of_them_are_read(self) -> None:
        terms = post(
            "/v1/completions", b"", x_gateway_inference_fairness_id="t", x_gateway_inference_objective="o",
            x_session_id="s", x_request_id="r", x_request_timeout="1500ms", x_slo_ttft_ms="250",
            x_llm_d_slo_tpot_ms="20.5",
        ).terms  # fmt: skip
        assert (terms.tenant, terms.objective, terms.session, terms.request_id) == ("t", "o", "s", "r")
        assert (terms.timeout_s, terms.ttft_s, terms.tpot_s) == (1.5, 0.25, 0.0205)

    @pytest.mark.parametrize(("sent", "seconds"), [("30", 30), ("2m", 120), (" 5s ", 5), ("999999999", 86_400)])
    def test_a_timeout_is_in_seconds_unless_it_says_otherwise(self, sent: str, seconds: float) -> None:
        assert post("/", b"", x_request_timeout=sent).terms.timeout_s == seconds

    @pytest.mark.parametrize("sent", ["", "0", "-1", "soon", "nan", "inf", "1e9", "1h", "9" * 400, "٣"])
    def test_a_timeout_that_makes_no_sense_is_none(self, sent: str) -> None:
        assert post("/", b"", x_request_timeout=sent).terms.timeout_s is None

    def test_an_overlong_name_is_ignored(self) -> None:
        assert post("/", b"", x_session_id="x" * (MOST_NAME_CHARS + 1)).terms.session == ""

    def test_a_gateway_may_name_another_model(self) -> None:
        assert post("/v1/completions", {"model": "a"}, x_llm_d_model_name_rewrite="b").model == "b"


class TestChat:
    """POST /v1/chat/completions."""

    def test_what_bears_on_placement_is_read(self) -> None:
        request = post(
            "/v1/chat/completions",
            {
                "model": "m", "messages": HELLO, "max_tokens": 7, "max_completion_tokens": 9, "n": 3, "stream": True,
                "cache_salt": "s", "priority": -2,
            },
        )  # fmt: skip
        assert (request.model, request.max_tokens, request.answers, request.stream) == ("m", 9, 3, True)
        assert (request.cache_salt, request.priority) == ("s", -2)

    def test_tools_are_handed_over_as_vllm_does(self) -> None:
        tool = {"function": {"strict": None, "parameters": {"b": 1, "a": 2}, "name": "f", "x": 1}, "y": 2}
        found = prompt("/v1/chat/completions", messages=HELLO, tools=[tool])
        assert isinstance(found, ChatPrompt)
        function = {"name": "f", "description": None, "parameters": {"b": 1, "a": 2}}
        assert json.dumps(found.tools) == json.dumps([{"type": "function", "function": function, "y": 2}])

    def test_an_effort_switches_thinking(self) -> None:
        found = prompt("/v1/chat/completions", messages=HELLO, reasoning_effort="none")
        assert isinstance(found, ChatPrompt)
        assert found.variables == {"enable_thinking": False, "reasoning_effort": "none"}

    @pytest.mark.parametrize(
        "fields",
        [
            {"chat_template": "{{ messages }}"},
            {"chat_template_kwargs": {"chat_template": "x"}},
            {"truncate_prompt_tokens": 5},
            {"tools": [7]},
        ],
    )
    def test_what_makes_another_prompt_of_it_is_placed_by_load(self, fields: dict[str, Any]) -> None:
        assert prompt("/v1/chat/completions", messages=HELLO, **fields) is None

    def test_flags_of_the_template_are_kept(self) -> None:
        flags = {"add_generation_prompt": False, "continue_final_message": True, "add_special_tokens": True}
        assert prompt("/v1/chat/completions", messages=HELLO, **flags) == ChatPrompt(HELLO, **flags)


class TestCompletions:
    """POST /v1/completions."""

    @pytest.mark.parametrize(
        ("sent", "read"),
        [
            ("text", TextPrompt("text")),
            ([1, 2], TokenPrompt([1, 2])),
            (["a", "b"], TextPrompt("a")),
            ([[1], [2]], TokenPrompt([1])),
        ],
    )
    def test_a_prompt_is_text_or_tokens_and_of_several_the_first(self, sent: Any, read: Prompt) -> None:
        assert prompt("/v1/completions", prompt=sent) == read

    def test_special_tokens_may_be_left_out(self) -> None:
        assert prompt("/v1/completions", prompt="x", add_special_tokens=False) == TextPrompt("x", False)

    def test_the_default_length_is_openais(self) -> None:
        assert post("/v1/completions", {"prompt": "x"}).max_tokens == 16

    @pytest.mark.parametrize("fields", [{"prompt_embeds": "AAAA"}, {"truncate_prompt_tokens": 3}])
    def test_embeddings_and_truncation_are_placed_by_load(self, fields: dict[str, Any]) -> None:
        assert prompt("/v1/completions", prompt="x", **fields) is None


class TestResponses:
    """POST /v1/responses."""

    def test_instructions_and_a_string_are_two_messages(self) -> None:
        system = {"role": "system", "content": "be brief"}
        assert prompt("/v1/responses", input="hello", instructions="be brief") == ChatPrompt([system, *HELLO])

    def test_items_that_follow_each_other_are_one_turn_of_the_assistants(self) -> None:
        items = [
            {"role": "user", "content": "hello"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ]
        call = {"id": "c", "function": {"name": "f", "arguments": "{}"}, "type": "function"}
        turn = {"role": "assistant", "reasoning": "hm", "content": "I see", "tool_calls": [call]}
        answer = {"role": "tool", "content": "42", "tool_call_id": "c"}
        assert prompt("/v1/responses", input=items) == ChatPrompt([*HELLO, turn, answer])

    def test_an_answer_that_broke_off_is_continued(self) -> None:
        last = {"role": "assistant", "content": "so", "status": "incomplete"}
        found = prompt("/v1/responses", input=[*HELLO, last])
        assert isinstance(found, ChatPrompt)
        assert (found.add_generation_prompt, found.continue_final_message) == (False, True)

    def test_only_functions_are_tools_of_the_template(self) -> None:
        tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}, "strict": True}]
        found = prompt("/v1/responses", input="x", tools=tools)
        assert isinstance(found, ChatPrompt)
        function = {"name": "f", "description": None, "parameters": {}, "strict": True}
        assert found.tools == [{"type": "function", "function": function}]

    def test_what_continues_a_stored_response_is_placed_by_load(self) -> None:
        assert prompt("/v1/responses", input="x", previous_response_id="resp_1") is None

    def test_encrypted_reasoning_is_placed_by_load(self) -> None:
        assert prompt("/v1/responses", input=[{"type": "reasoning", "encrypted_content": "x"}]) is None


class TestAnthropic:
    """POST /v1/messages."""

    def test_a_conversation_with_tools_becomes_a_chat(self) -> None:
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"q": "é"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "sun"}]},
                    {"type": "text", "text": "thanks"},
                    {"type": "text", "text": "bye"},
                ],
            },
        ]
        function = {"name": "f", "arguments": '{"q": "\\u00e9"}'}
        assert prompt("/v1/messages", messages=messages, max_tokens=5) == ChatPrompt(
            [
                {"role": "user", "content": "weather?"},
                {
                    "role": "assistant",
                    "reasoning": "hm",
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                    "content": "Let me look.",
                },
                {"role": "tool", "tool_call_id": "c", "content": "sun"},
                {"role": "user", "content": [{"type": "text", "text": "thanks"}, {"type": "text", "text": "bye"}]},
            ],
            joins_system=True,
        )

    def test_a_turn_of_nothing_but_results_adds_no_user_message(self) -> None:
        result = {"type": "tool_result", "tool_use_id": "c", "content": "42"}
        answer = {"role": "tool", "tool_call_id": "c", "content": "42"}
        assert prompt("/v1/messages", messages=[{"role": "user", "content": [result]}]) == ChatPrompt(
            [answer], joins_system=True
        )

    def test_claude_codes_billing_block_is_dropped(self) -> None:
        system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "Be brief."}]
        found = prompt("/v1/messages", system=system, messages=HELLO)
        assert found == ChatPrompt([{"role": "system", "content": "Be brief."}, *HELLO], joins_system=True)

    def test_tools_become_functions(self) -> None:
        found = prompt("/v1/messages", messages=HELLO, tools=[{"name": "f", "input_schema": {"properties": {}}}])
        assert isinstance(found, ChatPrompt)
        parameters = {"properties": {}, "type": "object"}
        function = {"name": "f", "description": None, "parameters": parameters}
        assert json.dumps(found.tools) == json.dumps([{"type": "function", "function": function}])

    def test_counting_tokens_is_placed_by_load(self) -> None:
        request = post("/v1/messages/count_tokens", {"model": "m", "messages": HELLO})
        assert (request.dialect, request.model, request.prompt, request.max_tokens) == (
            Dialect.ANTHROPIC, "m", None, 0,
        )  # fmt: skip


class TestEngine:
    """The engines' own APIs."""

    def test_vllm_generate_has_token_ids(self) -> None:
        body = {"token_ids": [4, 5], "sampling_params": {"max_tokens": 3, "n": 2}, "cache_salt": "s"}
        request = post("/inference/v1/generate", body)
        assert (request.max_tokens, request.answers, request.cache_salt) == (3, 2, "s")
        assert request.prompt and request.prompt.read() == TokenPrompt([4, 5])

    def test_no_features_are_none(self) -> None:
        assert prompt("/inference/v1/generate", token_ids=[1], features=None) == TokenPrompt([1])

    def test_images_of_token_prompts_are_known_by_their_identifiers(self) -> None:
        features = {
            "mm_hashes": {"image": ["cat", "dog"], "audio": ["song"]},
            "mm_placeholders": {
                "image": [{"offset": 9, "length": 4}, {"offset": 2, "length": 4}],
                "audio": [{"offset": 5, "length": 1}],
            },
            "kwargs_data": {"image": ["AAAA", None]},
        }  # fmt: skip
        media = [(2, "dog"), (5, "song"), (9, "cat")]
        assert prompt("/inference/v1/generate", token_ids=[1], features=features) == TokenPrompt([1], media=media)

    @pytest.mark.parametrize(
        "features",
        [
            {"mm_hashes": {"image": ["cat"]}},
            {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": []}},
            {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"audio": [{"offset": 1}]}},
            {"mm_hashes": {"image": [7]}, "mm_placeholders": {"image": [{"offset": 1}]}},
            {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": "1"}]}},
            {"mm_hashes": {"image": [None]}, "mm_placeholders": {"image": [{"offset": 1}]}},
        ],
    )
    def test_images_without_identifier_or_place_are_left_to_the_engine(self, features: dict[str, Any]) -> None:
        assert prompt("/inference/v1/generate", token_ids=[1], features=features) is None

    @pytest.mark.parametrize(
        ("fields", "read"), [({"input_ids": [1, 2]}, TokenPrompt([1, 2])), ({"text": "x"}, TextPrompt("x"))]
    )
    def test_sglang_generate_has_text_or_ids(self, fields: dict[str, Any], read: Prompt) -> None:
        assert prompt("/generate", **fields) == read

    @pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/embeddings", "/v1/score", "/v2/rerank"])
    def test_calls_that_fill_no_cache_name_a_model_only(self, path: str) -> None:
        request = post(path, {"model": "m", "prompt": "x", "messages": HELLO, "input": "x"})
        assert (request.model, request.prompt, request.max_tokens) == ("m", None, 0)


class TestForms:
    """Audio comes as a form."""

    FORM = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        b'%s\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
    )

    @pytest.mark.parametrize("size", [0, 1 << 20])
    def test_the_model_is_found_before_or_behind_the_file(self, size: int) -> None:
        content_type = "multipart/form-data; boundary=b"
        request = post("/v1/audio/transcriptions", self.FORM % (b"\x00" * size), content_type=content_type)
        assert (request.dialect, request.model) == (Dialect.OPENAI, "whisper")

    def test_without_a_model_it_is_placed_by_load(self) -> None:
        assert post("/v1/audio/translations", b"\xff" * 100).model is None


BODY = json.dumps({"model": "m", "prompt": "x" * 5000}).encode()


class TestCompression:
    """Bodies are unpacked for our own eyes."""

    @pytest.mark.parametrize(
        ("encoding", "packed"),
        [
            ("gzip", gzip.compress(BODY)),
            ("GZIP", gzip.compress(BODY)),
            ("deflate", zlib.compress(BODY)),
            ("deflate", zlib.compress(BODY, wbits=-15)),
            ("identity", BODY),
            ("gzip, deflate", zlib.compress(gzip.compress(BODY))),
            ("gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])),
            ("br", brotli.compress(BODY)),
            ("gzip, br", brotli.compress(gzip.compress(BODY))),
            ("zstd", zstandard.compress(BODY)),
            ("zstd", zstandard.compress(BODY[:9]) + zstandard.compress(BODY[9:])),
            ("zstd", zstandard.compress(BODY[:9]) + zstandard.compress(b"") + zstandard.compress(BODY[9:])),
        ],
    )
    def test_what_can_be_unpacked_is_read(self, encoding: str, packed: bytes) -> None:
        request = post("/v1/completions", packed, content_encoding=encoding)
        assert request.model == "m"
        assert request.prompt and request.prompt.read() == TextPrompt("x" * 5000)

    @pytest.mark.parametrize(
        ("encoding", "packed"),
        [
            ("br", BODY),
            ("br", brotli.compress(BODY)[:-1]),
            ("br", brotli.compress(BODY) + b"x"),
            ("zstd", b"\x28\xb5\x2f\xfd\x00"),
            ("zstd", zstandard.compress(BODY)[:-1]),
            ("zstd", zstandard.compress(BODY) + b"junk"),
            ("zstd", b""),
            ("zstd", zstandard.compress(b"") * 65),
            ("compress", BODY),
            ("gzip", BODY),
            ("gzip", gzip.compress(BODY)[:-9]),
            ("gzip, gzip, gzip", gzip.compress(gzip.compress(gzip.compress(BODY)))),
            ("gzip", gzip.compress(b"")[:-1] * 3),
            ("deflate", b"\xff" * 10),
        ],
    )
    def test_anything_else_is_placed_by_load(self, encoding: str, packed: bytes) -> None:
        request = post("/v1/completions", packed, content_encoding=encoding)
        assert request == InferenceRequest(Dialect.OPENAI, unread_bytes=len(packed))

    def test_a_bomb_stops_at_the_bound(self) -> None:
        bomb = gzip.compress(bytes(MOST_BYTES + 1))
        assert len(bomb) < 20_000
        assert unpack("gzip", bomb) is None
        assert unpack("deflate", zlib.compress(bytes(MOST_BYTES + 1))) is None
        assert unpack("br", brotli.compress(bytes(MOST_BYTES + 1))) is None
        assert unpack("zstd", zstandard.compress(bytes(MOST_BYTES + 1))) is None
        assert unpack("gzip", gzip.compress(bytes(1000)) * 2, most_bytes=1999) is None
        assert unpack("zstd", zstandard.compress(bytes(1000)) * 2, most_bytes=1999) is None
        assert unpack("zstd", zstandard.compress(bytes(1000)) * 2, most_bytes=2000) == bytes(2000)
        assert unpack("gzip", gzip.compress(bytes(1000)) * 2, most_bytes=2000) == bytes(2000)

    def test_many_small_members_are_not_followed_for_ever(self) -> None:
        assert unpack("gzip", gzip.compress(b"") * 10_000) is None
        assert unpack("zstd", zstandard.compress(b"") * 10_000) is None

    def test_a_zstd_frame_that_wants_much_memory_is_not_unpacked(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(window_log=27)
        stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        assert unpack("zstd", stream.compress(BODY) + stream.flush()) is None

    @given(st.sampled_from(["gzip", "deflate", "br", "zstd"]), st.binary(max_size=200))
    def test_any_bytes_unpack_or_do_not(self, encoding: str, packed: bytes) -> None:
        unpacked = unpack(encoding, packed, most_bytes=1000)
        assert unpacked is None or len(unpacked) <= 1000


class TestSplice:
    """Another model's name in the same bytes."""

    @pytest.mark.parametrize(
        ("body", "spliced"),
        [
            (b'{"model":"a"}', b'{"model":"new"}'),
            (b' {"n": 1 , "model" :\t"al\\u0069as" , "x": 1e2}\n', b' {"n": 1 , "model" :\t"new" , "x": 1e2}\n'),
            (b'{"x":{"model":"deep"},"model":"a"}', b'{"x":{"model":"deep"},"model":"new"}'),
            (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"new"}'),
            (b'{"model":"a","model":"b"}', b'{"model":"a","model":"new"}'),
            (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new"}'),
        ],
    )
    def test_only_the_models_value_changes(self, body: bytes, spliced: bytes) -> None:
        assert splice_model(body, "new") == spliced

    def test_a_name_is_written_as_json(self) -> None:
        assert splice_model(b'{"model":"a"}', 'x"y\n') == b'{"model":"x\\"y\\n"}'

    @pytest.mark.parametrize("body", [b"", b"[]", b'{"model":7}', b"{}", b'{"model":"a"', b'{"model":null}'])
    def test_where_there_is_no_name_nothing_is_done(self, body: bytes) -> None:
        assert splice_model(body, "new") is None


class TestErrors:
    """Refusals in the client's own shape."""

    def test_openai_clients_get_an_error_object(self) -> None:
        error = json.loads(error_body(Dialect.OPENAI, 429, "queue-full", "Come back."))["error"]
        assert error == {"message": "Come back.", "type": "RateLimit", "code": 429, "reason": "queue-full"}

    def test_anthropic_clients_get_a_typed_one(self) -> None:
        body = json.loads(error_body(Dialect.ANTHROPIC, 503, "no-workers", "Come back."))
        error = {"type": "overloaded_error", "message": "Come back.", "reason": "no-workers"}
        assert body == {"type": "error", "error": error}

    @pytest.mark.parametrize("body", [b"[]", b"nonsense", b'{"model":', b"[" * 100_000, b'{"a":' * 100_000])
    def test_a_refusal_never_quotes_the_body(self, body: bytes) -> None:
        with pytest.raises(BadRequest) as refused:
            post("/v1/completions", body)
        assert str(refused.value) in (
            "The request body is not a JSON object.",
            "The request body is nested too deeply.",
        )
