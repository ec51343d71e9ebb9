"""The short form of the fuzzing; `python -m tests.fuzz` is the long one, guided by coverage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.corpus import kept
from tests.fuzz.targets import TARGETS, chains

each_target = pytest.mark.parametrize("name", TARGETS)


@each_target
def test_seeds_what_was_kept_and_nothing_at_all_are_taken(name: str) -> None:
    target = TARGETS[name]
    for seed in (b"", *target.seeds, *kept(name)):
        target.run(seed)


@each_target
@settings(max_examples=60)
@given(data=st.data())
def test_damaged_seeds_are_taken(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    seed = bytearray(data.draw(st.sampled_from(target.seeds)))
    for at in data.draw(st.lists(st.integers(0, len(seed) - 1), max_size=4)):
        seed[at] = data.draw(st.integers(0, 255))
    target.run(bytes(seed[: data.draw(st.integers(0, len(seed)))]))


def test_a_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picker.prompts.chain.index_blocks", lambda start, tokens: list(tokens))
    with pytest.raises(AssertionError):
        chains(bytes(range(200)))
