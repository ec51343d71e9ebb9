"""How long answers are, learnt from engines' counters."""

from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.lengths import MOST_TOKENS, PRIOR_TOKENS, OutputLengths


def test_a_model_that_nothing_is_known_of_has_the_prior() -> None:
    assert OutputLengths().mean("llama") == PRIOR_TOKENS


def test_many_answers_outweigh_the_prior_and_few_do_not() -> None:
    lengths = OutputLengths()
    lengths.note("few", generated_tokens=2000, finished=2)
    for _ in range(100):
        lengths.note("many", generated_tokens=10_000, finished=10)
    assert PRIOR_TOKENS < lengths.mean("few") < 400
    assert 950 < lengths.mean("many") <= 1000


def test_what_was_long_ago_fades() -> None:
    lengths = OutputLengths()
    for tokens in (1000, 10):
        for _ in range(1000):
            lengths.note("m", tokens * 10, finished=10)
    assert lengths.mean("m") < 20


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=20))
def test_any_counts_give_a_mean_within_bounds(counts: list[tuple[int, int]]) -> None:
    lengths = OutputLengths()
    for generated, finished in counts:
        lengths.note("m", generated, finished)
    assert 1 <= lengths.mean("m") <= MOST_TOKENS


def test_models_that_nobody_serves_are_forgotten() -> None:
    lengths = OutputLengths()
    for model in ("a", "b"):
        lengths.note(model, 100_000, 100)
    lengths.keep({"b"})
    assert lengths.mean("a") == PRIOR_TOKENS
    assert lengths.mean("b") > PRIOR_TOKENS
