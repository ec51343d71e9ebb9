"""What pickers write for one another: bytes and back, and bytes that nobody wrote."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.redisview.records import Foreign
from picker.redisview.share_records import MAX_ROWS, Placed, Routed, Share, rows_of

U64 = st.integers(0, 2**64 - 1)
ROWS = st.lists(st.tuples(U64, st.integers(0, 9000), st.floats(0, 1e6)), max_size=5)


def share(*rows: tuple[int, int, float], picker: int = 1, beat: int = 1) -> Share:
    epochs = [row[0] for row in rows]
    requests, seconds = [row[1] for row in rows], [row[2] for row in rows]
    return Share(
        picker,
        beat,
        rows_of(
            epoch=np.array(epochs, np.uint64),
            requests=np.array(requests),
            context_tokens=np.array(requests) * 100,
            prefill_s=np.array(seconds),
            window_s=np.array(seconds),
            token_age_s=np.array(seconds),
            owing_age_s=np.array(seconds),
        ),
    )


@given(ROWS, U64, U64)
def test_a_share_is_what_it_was(rows: list[tuple[int, int, float]], picker: int, beat: int) -> None:
    written = share(*rows, picker=picker, beat=beat)
    read = Share.unpack(written.pack())
    assert (read.picker, read.beat) == (picker, beat)
    assert read.rows.tobytes() == written.rows.tobytes()


def test_of_too_many_workers_the_first_are_told() -> None:
    rows = [(n, 1, 0.0) for n in range(MAX_ROWS + 5)]
    assert len(Share.unpack(share(*rows).pack()).rows) == MAX_ROWS


@given(st.binary(max_size=200))
def test_bytes_that_nobody_wrote_are_foreign(data: bytes) -> None:
    for kind in (Share, Routed):
        with contextlib.suppress(Foreign):
            kind.unpack(data)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_share_with_impossible_times_is_foreign(seconds: float) -> None:
    bad = share((5, 1, 1.0))
    bad.rows["prefill_s"] = seconds
    with pytest.raises(Foreign, match="finite"):
        Share.unpack(bad.pack())


def test_a_share_that_is_cut_is_foreign() -> None:
    with pytest.raises(Foreign):
        Share.unpack(share((5, 1, 1.0)).pack()[:-1])


PLACED = st.builds(Placed, U64, st.booleans(), st.lists(U64, max_size=20))


@given(U64, st.lists(PLACED, max_size=5))
def test_placed_prefixes_are_what_they_were(picker: int, placed: list[Placed]) -> None:
    assert Routed.unpack(Routed(picker, placed).pack()) == Routed(picker, placed)


@given(st.lists(PLACED, min_size=1, max_size=3), st.data())
def test_placed_prefixes_that_are_cut_are_foreign(placed: list[Placed], data: st.DataObject) -> None:
    packed = Routed(1, placed).pack()
    with pytest.raises(Foreign):
        Routed.unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])
