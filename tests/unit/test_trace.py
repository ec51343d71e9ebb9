from __future__ import annotations

from pathlib import Path

import pytest

from picker.prompts.tokenizer import ModelTokenizer
from picker.simulation import trace
from picker.simulation.select import Line, compress, conversations, sample
from picker.simulation.words import DEMO_TOKENIZER, NoWords, load_words

TOKENIZER = ModelTokenizer.load(DEMO_TOKENIZER)


def tokens_of(messages: list[dict[str, str]]) -> list[int]:
    assert TOKENIZER.template is not None
    return TOKENIZER.encode(TOKENIZER.template.render(messages), add_special_tokens=False)


class TestShippedTrace:
    """The sample in the package."""

    requests = trace.load()

    def test_it_is_in_order_and_spans_about_45_seconds(self) -> None:
        times = [request.at_s for request in self.requests]
        assert times == sorted(times)
        assert (times[0], times[-1]) == (0.0, 45.0)
        assert 240 <= len(times) <= 300

    def test_most_of_its_prompts_continue_an_earlier_one(self) -> None:
        seen: set[int] = set()
        continued = 0
        for request in self.requests:
            continued += any(block in seen for block in request.blocks[1:])
            seen.update(request.blocks)
        assert continued > len(self.requests) / 2

    def test_it_has_conversations_of_many_turns(self) -> None:
        lines = [Line(0, 512 * len(each.blocks), 1, list(each.blocks)) for each in self.requests]
        assert max(len(turns) for turns in conversations(lines)) >= 3

    def test_every_answer_has_some_tokens(self) -> None:
        assert min(request.max_tokens for request in self.requests) >= trace.MIN_ANSWER_TOKENS


class TestMessages:
    """Blocks as chat messages."""

    def test_a_block_is_about_64_tokens(self) -> None:
        for request in trace.load()[:20]:
            assert len(tokens_of(request.messages_for(7))) == pytest.approx(64 * len(request.blocks), rel=0.05)

    def test_roles_alternate_and_the_last_is_the_user(self) -> None:
        request = trace.TraceRequest(0.0, (0, 1, 2, 3), 4)
        assert [message["role"] for message in request.messages_for(0)] == ["user", "assistant", "user", "user"]

    def test_equal_blocks_give_equal_token_prefixes_and_different_ones_do_not(self) -> None:
        first = tokens_of(trace.TraceRequest(0.0, (0, 1, 2), 4).messages_for(0))
        second = tokens_of(trace.TraceRequest(1.0, (0, 1, 9, 10, 11), 4).messages_for(0))
        shared = next(index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        assert shared == pytest.approx(128, rel=0.05)

    def test_the_same_seed_gives_the_same_text_and_another_seed_another(self) -> None:
        request = trace.TraceRequest(0.0, (5,), 4)
        assert request.messages_for(1) == request.messages_for(1)
        assert request.messages_for(1) != request.messages_for(2)


class TestSelection:
    """How the sample is taken."""

    def test_a_prompt_that_holds_an_earlier_ones_whole_blocks_continues_it(self) -> None:
        first = Line(0, 3 * 512 + 10, 1, [0, 1, 2, 3])
        other = Line(1, 3 * 512, 1, [0, 7, 8])
        second = Line(2, 5 * 512, 1, [0, 1, 2, 4, 5])
        assert conversations([first, other, second]) == [[first, second], [other]]

    def test_sharing_only_the_first_block_is_no_conversation(self) -> None:
        lines = [Line(0, 512, 1, [0]), Line(1, 1024, 1, [0, 1]), Line(2, 1024, 1, [0, 2])]
        assert len(conversations(lines)) == 3

    def test_conversations_with_few_turns_or_long_prompts_are_left_out(self) -> None:
        short = [Line(at, 1024, 1, [0, 1]) for at in range(2)]
        huge = [Line(at, 100_000, 1, [0, 2]) for at in range(3)]
        good = [Line(at, 1024, 1, [0, 3]) for at in range(3)]
        assert sample([short, huge, good]) == good

    def test_compression_keeps_which_ids_are_equal_and_the_share_of_time(self) -> None:
        lines = [Line(1000, 1, 1, [50, 60]), Line(2000, 1, 1, [50, 70]), Line(5000, 1, 1, [70])]
        assert [(line.timestamp, line.hash_ids) for line in compress(lines, span_ms=400)] == [
            (0, [0, 1]),
            (100, [0, 2]),
            (400, [2]),
        ]


class TestWords:
    """Words that are one token each."""

    def test_text_made_of_words_comes_back_as_the_same_tokens(self) -> None:
        words = load_words()
        assert TOKENIZER.encode(TOKENIZER.decode(words.tokens), add_special_tokens=False) == list(words.tokens)
        assert words.vocabulary_size == 2000

    def test_a_tokenizer_without_words_is_named(self, tmp_path: Path) -> None:
        tokenizer = '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
        (tmp_path / "tokenizer.json").write_text(tokenizer)
        with pytest.raises(NoWords, match=str(tmp_path)):
            load_words(tmp_path)
