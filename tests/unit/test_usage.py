"""The usage at the end of an answer."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.requests.usage import TAIL_BYTES, Unreadable, Usage, read_usage

CHAT = {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": None}


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"id": "x", "choices": [], "usage": CHAT, "kv_transfer_params": None}, Usage(5, 3)),
        ({"usage": CHAT | {"prompt_tokens_details": {"cached_tokens": 4}}}, Usage(5, 3, 4)),
        (
            {"usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 3}},
            Usage(5, 3, 0),
        ),
        ({"usage": {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 2}}, Usage(5, 3, 2)),
        ({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 5, "total_tokens": 5}}, Usage(5, 0)),
        ({"choices": [], "usage": None}, None),
        ({"error": {"message": 'no "usage": {} here'}}, None),
        ({"choices": [{"message": {"content": '{"usage": {"prompt_tokens": 99}}'}}]}, None),
    ],
)
def test_answers_of_all_apis(answer: dict[str, Any], usage: Usage | None) -> None:
    for indent in (None, 2):
        assert read_usage(json.dumps(answer, indent=indent).encode()) == usage


def test_of_a_stream_the_last_usage_counts() -> None:
    events = [{"choices": [{}], "usage": CHAT | {"completion_tokens": n}} for n in range(1, 9)]
    stream = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in [*events, {"usage": None}])
    assert read_usage(stream + b"data: [DONE]\n\n") == Usage(5, 8)


def test_what_precedes_the_tail_is_not_needed() -> None:
    whole = json.dumps({"choices": [{"message": {"content": "日" * 5000}}], "usage": CHAT}, ensure_ascii=False).encode()
    for cut in range(4):
        assert read_usage(whole[cut - TAIL_BYTES :]) == Usage(5, 3)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "x"]),
                inner,
            )
        ),
    )
)
def test_any_json_for_a_usage_is_one_or_none_or_unreadable(value: Any) -> None:
    try:
        found = read_usage(json.dumps({"usage": value}).encode())
    except Unreadable:
        return
    assert found is None or (isinstance(value, dict) and found.prompt == value["prompt_tokens"])


@given(st.binary(max_size=300), st.sampled_from([b'{"usage":', b'{"usage":{"prompt_tokens":', b"data: [DONE]", b""]))
def test_any_bytes_are_read_or_unreadable(data: bytes, before: bytes) -> None:
    with contextlib.suppress(Unreadable):
        read_usage(before + data)
