"""The model of a body that is not parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.requests.outline import WINDOW_BYTES, model_span

LONG = b'"prompt":[' + b"1," * WINDOW_BYTES + b"1]"

FOUND = {
    "first": b'{"model":"m",%b}' % LONG,
    "behind other scalars": b'{ "stream": true,\n"user":"a, \\"b\\" {", "model" : "m" , %b}' % LONG,
    "last": b'{%b,"model":"m"}' % LONG,
    "before other scalars": b'{%b, "model": "m", "n":-1e5, "user":"}" }\n' % LONG,
    "alone": b'{"model":"m"}',
    "twice, of which engines take the last": b'{"model":"x",%b,"model":"x","model":"m"}' % LONG,
}


@pytest.mark.parametrize("body", FOUND.values(), ids=list(FOUND))
def test_the_model_is_found_at_either_end(body: bytes) -> None:
    span = model_span(body)
    assert span and body[span] == b'"m"'


NOT_FOUND = {
    "between what is long": b'{%b,"model":"m",%b}' % (LONG, LONG),
    "of something within, first": b'{"metadata":{"model":"x"},%b}' % LONG,
    "of something within, last": b'{%b,"metadata":{"model":"x"}}' % LONG,
    "quoted": b'{%b,"user":"\\"model\\":\\"x\\"}"}' % LONG,
    "a value": b'{"user":"model",%b,"user":"model"}' % LONG,
    "no string": b'{"model":7,%b,"model":null}' % LONG,
    "nothing": b"",
}


@pytest.mark.parametrize("body", NOT_FOUND.values(), ids=list(NOT_FOUND))
def test_what_only_looks_like_it_is_not_taken(body: bytes) -> None:
    assert model_span(body) is None


words = st.sampled_from(["model", '"model":"x"', ',"model":"x"}', "\\", '"', "é", "{", ""])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(words, values, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_what_is_found_is_what_a_parser_finds(body: dict[str, Any], is_ascii: bool, indent: int | None) -> None:
    encoded = json.dumps(body, ensure_ascii=is_ascii, indent=indent).encode()
    if span := model_span(encoded):
        assert json.loads(encoded[span]) == body["model"]


@given(words, st.dictionaries(words.filter(lambda word: word != "model"), st.none() | st.integers() | words))
def test_among_scalars_it_is_found(model: str, others: dict[str, Any]) -> None:
    encoded = json.dumps({**others, "model": model}).encode()
    span = model_span(encoded)
    assert span and json.loads(encoded[span]) == model
