"""Records and their bytes."""

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.redisview.keys import Keys
from picker.redisview.records import (
    MAX_EVENT_BLOCKS,
    Foreign,
    KvEvent,
    KvOp,
    LoadRecord,
    Snapshot,
    WorkerRecord,
    WorkerState,
    xor_of,
)

U64 = st.integers(0, 2**64 - 1)
EVENTS = st.builds(
    KvEvent,
    epoch=U64,
    seq=U64,
    op=st.sampled_from(KvOp),
    blocks=st.lists(U64, max_size=MAX_EVENT_BLOCKS).map(tuple),
)
SNAPSHOTS = st.builds(Snapshot, epoch=U64, seq=U64, stream_id=st.tuples(U64, U64), blocks=st.lists(U64, max_size=50))
LOADS = st.builds(
    LoadRecord,
    epoch=U64,
    beat=st.integers(0, 2**32 - 1),
    facts=st.integers(0, 2**32 - 1),
    running=st.integers(0, 65535),
    waiting=st.integers(0, 65535),
    waiting_tokens=st.integers(0, 2**63 - 1),
    kv_used=st.floats(0, 1, width=32),
    prefill_tokens_per_s=st.floats(0, 1e9, width=32),
    decode_tokens_per_s=st.floats(0, 1e9, width=32),
    kv_seq=U64,
    kv_count=st.integers(0, 2**32 - 1),
    kv_xor=U64,
    looked_up_tokens=st.integers(0, 2**63 - 1),
    reused_tokens=st.integers(0, 2**63 - 1),
    generated_tokens=st.integers(0, 2**63 - 1),
    finished=st.integers(0, 2**63 - 1),
    first_tokens=st.integers(0, 2**63 - 1),
    errors=st.integers(0, 2**63 - 1),
)
FULL_RECORD = WorkerRecord(
    worker="10.0.0.7:8000#1",
    epoch=2**63 - 1,
    endpoint="10.0.0.7:8000",
    rank=1,
    state=WorkerState.READY,
    models=("llama", "llama-latest"),
    adapters=("sql",),
    kv_capacity_tokens=500_000,
    labels={"zone": "a"},
)


@given(EVENTS)
def test_an_event_survives_its_bytes(event: KvEvent) -> None:
    assert KvEvent.unpack(event.pack()) == event


@given(SNAPSHOTS)
def test_a_snapshot_survives_its_bytes(snapshot: Snapshot) -> None:
    assert Snapshot.unpack(snapshot.pack()) == snapshot


@given(LOADS)
def test_a_load_survives_its_bytes(load: LoadRecord) -> None:
    assert LoadRecord.unpack(load.pack()) == load


def test_a_worker_survives_its_bytes() -> None:
    assert WorkerRecord.unpack(FULL_RECORD.pack()) == FULL_RECORD


@pytest.mark.parametrize("kind", [WorkerRecord, LoadRecord, KvEvent, Snapshot])
@given(data=st.binary(max_size=200))
def test_any_bytes_decode_or_are_foreign(
    kind: type[WorkerRecord] | type[LoadRecord] | type[KvEvent] | type[Snapshot], data: bytes
) -> None:
    try:
        kind.unpack(data)
    except Foreign:
        return


@given(SNAPSHOTS, st.data())
def test_a_snapshot_that_lost_a_bit_of_its_blocks_is_foreign(snapshot: Snapshot, data: st.DataObject) -> None:
    packed = bytearray(snapshot.pack())
    if not snapshot.blocks:
        return
    bit = data.draw(st.integers(len(packed) * 8 - len(snapshot.blocks) * 64, len(packed) * 8 - 1))
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Foreign):
        Snapshot.unpack(bytes(packed))


@pytest.mark.parametrize("length", [0, 1, 17, 25])
def test_a_truncated_event_is_foreign(length: int) -> None:
    with pytest.raises(Foreign):
        KvEvent.unpack(KvEvent(1, 2, KvOp.STORE, (3,)).pack()[:length])


def test_an_event_of_more_blocks_than_allowed_is_foreign() -> None:
    with pytest.raises(Foreign):
        KvEvent.unpack(KvEvent(1, 2, KvOp.STORE, tuple(range(MAX_EVENT_BLOCKS + 1))).pack())


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_foreign(version: int) -> None:
    for record in (LoadRecord(1, 1, 1), KvEvent(1, 1, KvOp.CLEAR), Snapshot(1, 1, (0, 0), [])):
        with pytest.raises(Foreign):
            type(record).unpack(bytes([version]) + record.pack()[1:])


def test_gauges_that_an_engine_has_not_measured_yet_become_zero() -> None:
    load = LoadRecord(1, 1, 1, kv_used=math.nan, prefill_tokens_per_s=-1.0)
    assert LoadRecord.unpack(load.pack()) == LoadRecord(1, 1, 1)


def test_numbers_that_do_not_fit_become_the_nearest_that_do() -> None:
    load = LoadRecord(1, 2**32 + 5, 1, running=10**6, waiting=-3, waiting_tokens=-1, decode_tokens_per_s=math.inf)
    unpacked = LoadRecord.unpack(load.pack())
    assert (unpacked.beat, unpacked.running, unpacked.waiting, unpacked.waiting_tokens) == (5, 65535, 0, 0)
    assert math.isfinite(unpacked.decode_tokens_per_s)


def test_a_load_that_is_no_finite_number_is_foreign() -> None:
    packed = bytearray(LoadRecord(1, 1, 1).pack())
    packed[29:33] = b"\x00\x00\xc0\x7f"  # kv_used = NaN
    with pytest.raises(Foreign):
        LoadRecord.unpack(bytes(packed))


def test_more_waiting_tokens_than_a_view_can_hold_are_written_as_the_most_and_read_as_foreign() -> None:
    packed = bytearray(LoadRecord(1, 1, 1, waiting_tokens=2**64).pack())
    assert LoadRecord.unpack(bytes(packed)).waiting_tokens == 2**63 - 1
    packed[21:29] = b"\xff" * 8
    with pytest.raises(Foreign):
        LoadRecord.unpack(bytes(packed))


def test_counters_beyond_what_a_view_can_hold_are_written_as_the_most_and_read_as_foreign() -> None:
    packed = bytearray(LoadRecord(1, 1, 1, errors=2**64, looked_up_tokens=-1).pack())
    load = LoadRecord.unpack(bytes(packed))
    assert (load.looked_up_tokens, load.errors) == (0, 2**63 - 1)
    packed[-8:] = b"\xff" * 8
    with pytest.raises(Foreign):
        LoadRecord.unpack(bytes(packed))


def test_a_worker_record_that_nests_too_deep_is_foreign() -> None:
    with pytest.raises(Foreign):
        WorkerRecord.unpack(b'{"x":' + b"[" * 100_000)


@given(st.lists(U64, max_size=30))
def test_the_digest_does_not_depend_on_order(blocks: list[int]) -> None:
    assert xor_of(blocks) == xor_of(blocks[::-1])


def test_all_keys_of_a_pool_share_one_hash_tag() -> None:
    keys = Keys("prod")
    names = [keys.load, keys.events, keys.meta, keys.worker("a:1"), keys.snapshot(7), keys.wanted(7)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("picker1:{prod}:") for name in names)


def test_a_million_blocks_are_not_made_integers_of_when_they_are_read() -> None:
    """Which would hold up the event loop for long; the reader takes them in parts."""
    packed = Snapshot(1, 1, (0, 0), range(1_000_000)).pack()
    tracemalloc.start()
    blocks = Snapshot.unpack(packed).blocks
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20
    assert blocks[5:8] == [5, 6, 7]
    assert (len(blocks), blocks[-1]) == (1_000_000, 999_999)
