"""Which adapters a worker has loaded, by our own placements."""

from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.adapters import LoadedAdapters


def test_the_one_used_least_lately_makes_room() -> None:
    loaded = LoadedAdapters()
    for adapter in ("a", "b", "a", "c"):
        loaded.use(3, adapter, room=2)
    assert [bool(loaded.owners(adapter)) for adapter in "abc"] == [True, False, True]


def test_workers_hold_the_same_adapter_independently() -> None:
    loaded = LoadedAdapters()
    loaded.use(1, "a", 4)
    loaded.use(65, "a", 4)
    assert loaded.owners("a") == 1 << 1 | 1 << 65
    loaded.clear(1)
    loaded.clear(1)
    assert loaded.owners("a") == 1 << 65


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdef"))), st.integers(0, 4))
def test_a_worker_holds_the_last_one_and_no_more_than_it_has_room_for(script: list[tuple[int, str]], room: int) -> None:
    loaded = LoadedAdapters()
    for slot, adapter in script:
        loaded.use(slot, adapter, room)
        held = [name for name in "abcdef" if loaded.owners(name) >> slot & 1]
        assert adapter in held
        assert len(held) <= max(1, room)
    for slot in range(3):
        loaded.clear(slot)
    assert not any(loaded.owners(name) for name in "abcdef")
