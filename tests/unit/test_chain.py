"""Prefix chains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from picker.prompts import chain

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=200)
scopes = st.integers(0, 2**64 - 1)
names = st.text(max_size=6)


def test_values_that_agents_and_pickers_of_all_versions_share() -> None:
    start = chain.scope("llama")
    assert start == 4070934902464341416
    assert chain.scope("llama", "lora") == 6986294803089153833
    assert chain.scope("llama", salt="lora") == 9504230523469719657
    assert chain.extend(start, range(40)) == [16398080601838420580, 8272207151228175140]
    assert chain.index_blocks(start, range(130)) == [14944298191204310146, 16507486973734798520]
    assert chain.text_blocks(start, b"a" * 600 + b"b" * 600) == [11455670734684237345, 17781322820307813586]


def test_a_hash_takes_in_the_one_before_and_sixteen_little_endian_tokens() -> None:
    data = (7).to_bytes(8, "little") + b"".join(token.to_bytes(4, "little") for token in range(16))
    assert chain.extend(7, range(16)) == [xxh3_64_intdigest(data)]


@given(scopes, tokens)
def test_every_fourth_hash_is_an_index_block(start: int, prompt: list[int]) -> None:
    hashes = chain.extend(start, prompt)
    assert len(hashes) == len(prompt) // chain.HASH_TOKENS
    assert chain.index_blocks(start, prompt) == hashes[3::4]
    assert len(chain.index_blocks(start, prompt)) == len(prompt) // chain.INDEX_TOKENS


@given(scopes, tokens, tokens)
def test_a_longer_prompt_begins_with_the_chain_of_its_prefix(start: int, prompt: list[int], more: list[int]) -> None:
    blocks = chain.index_blocks(start, prompt)
    assert chain.index_blocks(start, prompt + more)[: len(blocks)] == blocks


@given(scopes, tokens, st.integers(0, 12))
def test_a_chain_can_be_continued_at_any_block(start: int, prompt: list[int], at: int) -> None:
    cut = min(at, len(prompt) // 16) * 16
    head = chain.extend(start, prompt[:cut])
    assert head + chain.extend(head[-1] if head else start, prompt[cut:]) == chain.extend(start, prompt)


@given(scopes, st.lists(st.integers(0, 2**32 - 1), min_size=64, max_size=200), st.data())
def test_one_other_token_changes_every_block_from_there_on(start: int, prompt: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(prompt) - 1))
    changed = [*prompt[:at], prompt[at] ^ 1, *prompt[at + 1 :]]
    one, other = chain.extend(start, prompt), chain.extend(start, changed)
    assert [a == b for a, b in zip(one, other, strict=True)] == [block < at // 16 for block in range(len(one))]


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_scopes_are_equal_only_where_all_parts_are(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (chain.scope(*one) == chain.scope(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("m", "x", ""), ("m", "", "x")),
        (("mx", "", ""), ("m", "x", "")),
        (("m", "a", "b"), ("m", "ab", "")),
        (("ma", "", ""), ("m", "", "a")),
        (("m", "", ""), ("", "m", "")),
    ],
)
def test_parts_of_a_scope_do_not_run_into_each_other(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert chain.scope(*one) != chain.scope(*other)


@pytest.mark.parametrize("token", [-1, 2**32, 2**70, "a", None])
def test_what_is_no_token_id_is_refused(token: object) -> None:
    with pytest.raises(ValueError, match=r"token ids|invalid literal"):
        chain.index_blocks(0, [token] * 64)  # type: ignore[list-item]


@given(scopes, st.binary(max_size=3000), st.binary(max_size=3000))
def test_more_text_keeps_the_blocks_and_adds_to_them(start: int, text: bytes, more: bytes) -> None:
    blocks = chain.text_blocks(start, text)
    assert len(blocks) == len(text) // chain.TEXT_BLOCK_BYTES
    assert chain.text_blocks(start, text + more)[: len(blocks)] == blocks


@given(st.binary(min_size=1024, max_size=2000), st.integers(0, 511))
def test_another_byte_changes_all_text_blocks_from_there_on(text: bytes, place: int) -> None:
    other = text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :]
    assert not set(chain.text_blocks(1, text)) & set(chain.text_blocks(1, other))


def test_text_and_tokens_of_the_same_bytes_have_different_blocks() -> None:
    ids = list(range(640))
    assert not set(chain.text_blocks(1, chain.pack(ids))) & set(chain.extend(1, ids))
