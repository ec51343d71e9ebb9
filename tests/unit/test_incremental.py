"""Cutting, remembering, stopping: nothing of it changes a chain."""

from __future__ import annotations

import itertools
import re
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from picker.prompts import chain, segments
from picker.prompts.chain import ChainState
from picker.prompts.incremental import BATCH_CHARS, IncrementalReader
from picker.prompts.prefix import PrefixChain, Rung
from picker.prompts.reader import PromptReader, never
from picker.prompts.segments import LEAST_CHARS, Segmenter, find_cuts, is_exact
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.model import ChatPrompt
from tests import tiny_models
from tests.conversations import Message, chat, text

MODEL = tiny_models.load("chatml")
SCOPE = chain.scope("m")


def read(reader: IncrementalReader, prompt: str, model: ModelTokenizer = MODEL, start: int = SCOPE) -> PrefixChain:
    return reader.read(prompt, start, model, never, add_special_tokens=True)


def expected(prompt: str, model: ModelTokenizer = MODEL, start: int = SCOPE) -> PrefixChain:
    tokens = model.encode(prompt, add_special_tokens=True)
    return PrefixChain(Rung.TOKENS, len(tokens), chain.index_blocks(start, tokens))


def long_chat(turns: int, seed: int = 0) -> str:
    random = Random(seed)
    return "".join(f"<|im_start|>user\n{text(random, 150)}<|im_end|>\n" for _ in range(turns))


class TestChainState:
    """A chain that goes on where it stood."""

    @given(st.lists(st.integers(0, 2**32 - 1), max_size=400), st.lists(st.integers(0, 400), max_size=6))
    def test_in_pieces_it_is_the_chain_of_the_whole(self, tokens: list[int], cuts: list[int]) -> None:
        state, blocks = ChainState(SCOPE), []
        edges = [0, *sorted(cuts), len(tokens)]
        for start, end in itertools.pairwise(edges):
            state, more = state.advance(chain.pack(tokens[start:end]))
            blocks += more
        assert blocks == chain.index_blocks(SCOPE, tokens)
        assert state == ChainState(SCOPE).advance(chain.pack(tokens))[0]
        assert state.tokens == len(tokens)


class TestSegments:
    """Where texts are cut."""

    @given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "x" * 100, "é" * 300, "<|im_", ""]), max_size=30))
    def test_pieces_add_up_and_a_longer_text_keeps_all_but_the_last(self, parts: list[str]) -> None:
        shorter, longer = "".join(parts[: len(parts) // 2]), "".join(parts)
        pieces = MODEL.segmenter.split(longer)
        assert "".join(pieces) == longer
        assert all(len(piece) >= LEAST_CHARS for piece in pieces[:-1])
        kept = MODEL.segmenter.split(shorter)[:-1]
        assert pieces[: len(kept)] == kept

    @given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|", "a", "<|im_", "|>", "\n"]), max_size=60))
    def test_it_does_not_matter_in_which_slices_a_text_is_searched(self, parts: list[str]) -> None:
        whole, cuts = "".join(parts), ("<|im_end|>", "<|im_start|>")
        wanted = [match.start() for match in re.finditer("|".join(map(re.escape, cuts)), whole)]
        for size in (1, 5, 16, 1000):
            with pytest.MonkeyPatch.context() as smaller:
                smaller.setattr(segments, "SLICE_CHARS", size)
                assert list(Segmenter(cuts).places(whole)) == wanted

    @pytest.mark.parametrize("family", tiny_models.FAMILIES)
    def test_every_family_can_be_cut(self, family: str) -> None:
        assert tiny_models.load(family).segmenter.cuts

    def test_a_token_that_another_overlaps_is_no_place_to_cut(self) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.add_special_tokens(["<a>", "\n<a>", "<b>", "x<", "<c>"])
        assert find_cuts(tokenizer, None) == ["\n<a>", "x<"]

    def test_a_token_that_takes_blanks_from_its_left_is_no_place_to_cut(self) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.add_special_tokens([AddedToken("[a]", lstrip=True), AddedToken("[b]", rstrip=True)])
        assert find_cuts(tokenizer, None) == ["[b]"]

    def test_only_what_the_template_writes_is_cut_at(self) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.add_special_tokens(["[a]", "[b]"])
        assert find_cuts(tokenizer, "so [b] it goes") == ["[b]"]

    def test_a_tokenizer_that_looks_at_a_texts_ends_is_given_whole_texts(self) -> None:
        def marks_its_beginning(text: str) -> list[int]:
            return [0, *map(ord, text)]

        assert not is_exact(marks_its_beginning, "<a>")
        assert is_exact(lambda text: list(map(ord, text)), "<a>")
        assert Segmenter([]).split("<a>" * 1000) == ["<a>" * 1000]


class TestMemo:
    """On, off, evicting, shared: the same chains."""

    @pytest.mark.parametrize("family", tiny_models.FAMILIES)
    @pytest.mark.parametrize("room", [0, 3000, 1 << 20], ids=["off", "evicting", "on"])
    def test_conversations_that_grow_have_the_chains_of_their_texts(self, family: str, room: int) -> None:
        model = tiny_models.load(family)
        assert model.template is not None
        reader = IncrementalReader(room, room)
        for seed in range(4):
            messages = [message for message in chat(Random(seed), turns=8) if message["role"] != "system"]
            for turn in range(1, len(messages) + 1, 2):
                rendered = model.template.render(messages[:turn])
                assert read(reader, rendered, model) == expected(rendered, model)

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.sampled_from(["", "a", "b"])), max_size=12))
    def test_in_any_order_and_scope(self, reads: list[tuple[int, int, str]]) -> None:
        reader = IncrementalReader(20_000, 20_000)
        for seed, turns, salt in reads:
            prompt, start = long_chat(turns, seed), chain.scope("m", "", salt)
            assert read(reader, prompt, start=start) == expected(prompt, start=start)

    def test_a_turn_more_tokenises_the_turn_only(self) -> None:
        reader = IncrementalReader(1 << 20, 1 << 20)
        read(reader, long_chat(50))
        states, tokens = reader.statistics()
        read(reader, long_chat(51))
        more_states, more_tokens = reader.statistics()
        assert more_tokens.entries - tokens.entries <= 2
        assert more_states.hits - states.hits >= states.entries - 1

    def test_another_beginning_finds_the_tokens_of_what_follows(self) -> None:
        reader = IncrementalReader(1 << 20, 1 << 20)
        prompt = f"<|im_start|>system\n{'a' * 300}<|im_end|>\n" + long_chat(30)
        read(reader, prompt)
        before = reader.statistics()[1]
        other = prompt.replace("a" * 300, "b" * 300)
        assert read(reader, other) == expected(other)
        assert reader.statistics()[1].entries - before.entries == 1

    def test_models_with_one_tokenizer_share_tokens_and_not_chains(self) -> None:
        reader = IncrementalReader(1 << 20, 1 << 20)
        prompt = long_chat(10)
        first, second = (read(reader, prompt, start=chain.scope(name)) for name in ("one", "two"))
        assert not set(first.blocks) & set(second.blocks)
        assert reader.statistics()[1].entries < reader.statistics()[0].entries

    def test_a_bound_holds(self) -> None:
        reader = IncrementalReader(10_000, 10_000)
        for seed in range(10):
            read(reader, long_chat(20, seed))
        assert all(0 < each.bytes <= 10_000 for each in reader.statistics())


class TestTime:
    """A prompt for which there is no time."""

    def stops_after(self, batches: int) -> IncrementalReader:
        self.left = batches
        return IncrementalReader(1 << 24, 1 << 24)

    def is_over(self) -> bool:
        self.left -= 1
        return self.left < 0

    def test_what_is_known_by_then_has_to_do(self) -> None:
        prompt = long_chat(BATCH_CHARS // 100)
        reader = self.stops_after(1)
        found = reader.read(prompt, SCOPE, MODEL, self.is_over, add_special_tokens=True)
        whole = expected(prompt)
        assert (found.rung, found.exact) == (Rung.PART, True)
        assert 0 < len(found.blocks) < len(whole.blocks)
        assert found.blocks == whole.blocks[: len(found.blocks)]
        assert found.prompt_tokens > len(found.blocks) * 64

    def test_the_next_turn_goes_on_from_there(self) -> None:
        prompt = long_chat(BATCH_CHARS // 100)
        reader = self.stops_after(1)
        first = reader.read(prompt, SCOPE, MODEL, self.is_over, add_special_tokens=True)
        self.left = 1
        second = reader.read(prompt, SCOPE, MODEL, self.is_over, add_special_tokens=True)
        assert len(second.blocks) > len(first.blocks)
        assert read(reader, prompt) == expected(prompt)

    def test_with_no_time_at_all_it_is_the_remembered_part(self) -> None:
        reader = self.stops_after(1000)
        read(reader, long_chat(20))
        self.left = 0
        found = reader.read(long_chat(40), SCOPE, MODEL, self.is_over, add_special_tokens=True)
        assert found.blocks == expected(long_chat(40)).blocks[: len(found.blocks)] != []


class TestExtension:
    """A conversation that goes on keeps its earlier blocks."""

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(st.sampled_from(["headers", "bars", "turns", "stripping", "parts"]), st.integers(0, 1000), st.booleans())
    def test_each_turn_extends_the_chain_of_the_one_before(self, family: str, seed: int, has_tokenizer: bool) -> None:
        reader = PromptReader({"m": tiny_models.load(family)} if has_tokenizer else {}, 5000, 5000)
        messages = _alternating(seed)
        earlier: list[int] = []
        for turn in range(1, len(messages) + 1, 2):
            found = reader.read(ChatPrompt(messages[:turn]), "m", "", "")
            assert found.rung is (Rung.TOKENS if has_tokenizer else Rung.TEXT)
            # The last block may hold the beginning of an answer that came out differently.
            kept = max(0, len(earlier) - 1)
            assert found.blocks[:kept] == earlier[:kept]
            earlier = found.blocks


def _alternating(seed: int) -> list[Message]:
    random = Random(seed)
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": f"{number}: {text(random, 80)}"} for number in range(9)]


def test_cuts_are_tried_with_every_sample_before_and_behind() -> None:
    tried: set[str] = set()

    def encode(text: str) -> list[int]:
        tried.add(text)
        return list(map(ord, text))

    assert is_exact(encode, "<a>")
    assert {"日本語<a>  two  blanks  ", "<a>é<a>\n\nlines\n<a>"} <= tried
    assert len(tried) > len(segments._SAMPLES) ** 2
