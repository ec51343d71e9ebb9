"""The names that kinds of engine have for things: their pages, as in their sources, to the same values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from picker.agent import loads
from picker.agent.describe import Residency, load
from picker.agent.engines import KINDS, kind_by_metrics, kind_of, sglang, trtllm, vllm
from picker.agent.engines.kind import About, EventSource, Unknown
from picker.agent.lifecycle import Finding
from picker.agent.loads import LoadReport
from picker.agent.metrics import AdapterUse, Counters, Metrics, Unreadable, Which
from picker.agent.publisher import Load
from picker.redisview.records import WorkerState

# -- SGLang ------------------------------------------------------------------------------------------------------------

_ENGINE = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="%d"'


def sglang_page(rank: str = "", tp: int = 0) -> str:
    of = _ENGINE % tp + (f',dp_rank="{rank}"' if rank else "")
    return (
        f"sglang:num_running_reqs{{{of}}} 3.0\nsglang:num_queue_reqs{{{of}}} 2.0\nsglang:token_usage{{{of}}} 0.25\n"
        f"sglang:max_total_num_tokens{{{of}}} 20000.0\nsglang:num_running_reqs_offline_batch{{{of}}} 99.0\n"
    )


SGLANG_SERVER = (
    'sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 800.0\n'
    'sglang:prompt_tokens_total{model_name="m",is_streaming="false"} 200.0\n'
    'sglang:cached_tokens_total{model_name="m",cache_source="device"} 400.0\n'
    'sglang:generation_tokens_total{model_name="m",is_streaming="true"} 70.0\n'
    'sglang:num_requests_total{model_name="m",is_streaming="true"} 6.0\n'
    'sglang:num_aborted_requests_total{model_name="m"} 1.0\n'
    'sglang:time_to_first_token_seconds_count{model_name="m"} 9.0\n'
)
SGLANG_COUNTERS = Counters(600, 70, 6, 0, 1000, 400, 9, 1)


def test_sglangs_names_are_known() -> None:
    metrics = sglang.read_metrics((sglang_page() + SGLANG_SERVER).encode(), Which())
    assert metrics == Metrics(3, 2, 0.25, kv_capacity_tokens=20_000, counters=SGLANG_COUNTERS)
    assert metrics.waiting_tokens == 200


def test_sglangs_tensor_parallel_parts_are_one_engine_and_its_ranks_are_several() -> None:
    page = sglang_page("0", 0) + sglang_page("0", 1) + sglang_page("1", 2) + SGLANG_SERVER
    both, one = (sglang.read_metrics(page.encode(), Which(rank)) for rank in (None, 1))
    assert (both.running, both.kv_capacity_tokens, both.ranks) == (6, 40_000, {"0", "1"})
    assert (one.running, one.kv_capacity_tokens, one.counters) == (3, 20_000, SGLANG_COUNTERS)


def test_sglangs_total_is_not_added_to_its_parts_by_priority() -> None:
    page = "".join(
        f'sglang:num_queue_reqs{{model_name="m",priority="{priority}"}} {count}.0\n'
        for priority, count in (("", 5), ("1", 2), ("2", 3))
    )
    assert sglang.read_metrics(page.encode(), Which()).waiting == 5


def test_sglangs_models_on_one_page_are_told_apart() -> None:
    page = sglang_page() + sglang_page().replace('"m"', '"other"').replace("} 3.0", "} 8.0")
    assert sglang.read_metrics(page.encode(), Which(model="other")).running == 8


@pytest.mark.parametrize("page", ["", "<html>", "vllm:num_requests_running 3", "sglang:token_usage NaN"])
def test_a_page_without_sglangs_numbers_is_unreadable(page: str) -> None:
    with pytest.raises(Unreadable):
        sglang.read_metrics(page.encode(), Which())


SERVER_INFO: dict[str, Any] = {
    "version": "0.5.23",
    "max_total_num_tokens": 20_000,
    "kv_events": {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "",
        "block_size": 1,
        "dp_size": 2,
        "load_endpoint_port_base": 5561,
        "replay_endpoint_port_base": 5559,
    },
}


def test_sglang_tells_where_a_rank_publishes() -> None:
    about = sglang.read_about("/server_info", json.dumps(SERVER_INFO).encode(), 1, "10.0.0.5:30000")
    source = EventSource("tcp://10.0.0.5:5558", "tcp://10.0.0.5:5560")
    assert about == About("0.5.23", source, "tcp://10.0.0.5:5562", 20_000)


def test_sglang_without_events_or_load_reports_says_so_by_leaving_them_out() -> None:
    info = SERVER_INFO | {"kv_events": {"endpoint_host": "[::]", "endpoint_port_base": 5557}}
    about = sglang.read_about("/server_info", json.dumps(info).encode(), None, "[fd00::5]:30000")
    assert about == About("0.5.23", EventSource("tcp://[fd00::5]:5557"), None, 20_000)
    none = sglang.read_about("/server_info", b'{"version":"0.5.1","kv_events":null}', None, "h:1")
    assert none == About("0.5.1")


def test_a_load_report_of_sglang_is_read_whatever_follows_in_it() -> None:
    stat = ["LoadStat", 3, 2, 5000, 20_000, 0, 1234, 6000, 64, 9, 9, "new"]
    frames = [b"load", bytes(8), msgspec.msgpack.encode(stat)]
    assert loads.decode(frames) == LoadReport(3, 2, 1234, 0.25)
    assert loads.decode([b"load", bytes(8), msgspec.msgpack.encode(["LoadStat", 1, 0, 5, 0])]) == LoadReport(
        1, 0, 0, None
    )


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"load"],
        [b"load", b"", b"\xc1"],
        [b"load", b"", b"\x91\xa1x"],
        [b"other", b"", b"\x90"],
        [b"load", b"", b""],
    ],
)
def test_frames_that_are_no_load_report_are_skipped(frames: list[bytes]) -> None:
    assert loads.decode(frames) is None


def test_a_load_report_takes_the_place_of_slower_gauges() -> None:
    metrics = Metrics(1, 1, 0.5, counters=Counters(first_tokens=7))
    finding = Finding(WorkerState.READY, prefill_tokens_per_s=9.0)
    assert load(metrics, finding, None) == Load(1, 1, 0, 0.5, 9.0, first_tokens=7)
    assert load(metrics, finding, LoadReport(3, 2, 1234, None)) == Load(3, 2, 1234, 0.0, 9.0, first_tokens=7)


# -- TensorRT-LLM ------------------------------------------------------------------------------------------------------

ITERATION: dict[str, Any] = {
    "iter": 41,
    "numActiveRequests": 5,
    "numQueuedRequests": 3,
    "kvCacheStats": {"maxNumBlocks": 1000, "usedNumBlocks": 600, "tokensPerBlock": 64},
    "inflightBatchingStats": {"numPausedRequests": 1, "numGenRequests": 3},
}


def test_the_last_of_tensorrt_llms_iterations_counts() -> None:
    page = json.dumps([ITERATION | {"numActiveRequests": 9}, ITERATION]).encode()
    assert trtllm.read_metrics(page, Which()) == Metrics(
        5, 4, 0.6, kv_capacity_tokens=64_000, counters=Counters(steps=41)
    )


def test_tokens_that_tensorrt_llm_has_queued_are_taken_as_they_are() -> None:
    waiting = ITERATION | {"inflightBatchingStats": {"numQueuedCtxTokens": 128}}
    metrics = trtllm.read_metrics(json.dumps([waiting]).encode(), Which())
    assert metrics is not None and metrics.waiting_tokens == 128


def test_no_iteration_since_the_last_look_is_nothing_new() -> None:
    assert trtllm.read_metrics(b"[]", Which()) is None


def test_tensorrt_llms_names_in_prometheus_form_are_known() -> None:
    labels = '{engine_type="trtllm",model_name="m"}'
    numbers = {
        "num_requests_running": 5, "num_requests_waiting": 4, "kv_cache_utilization": 0.6, "kv_cache_max_blocks": 1000,
        "kv_cache_tokens_per_block": 64, "prompt_tokens_total": 1000, "prompt_cached_tokens_total": 400,
        "generation_tokens_total": 70, "request_success_total": 6, "request_error_total": 1,
        "time_to_first_token_seconds_count": 9, "iteration_latency_seconds_count": 41,
    }  # fmt: skip
    page = "".join(f"trtllm_{name}{labels} {value}\n" for name, value in numbers.items())
    expected = Metrics(5, 4, 0.6, kv_capacity_tokens=64_000, counters=replace(SGLANG_COUNTERS, steps=41))
    assert trtllm.read_metrics(page.encode(), Which(model="m")) == expected


@pytest.mark.parametrize("page", [b"", b"[", b'[{"iter":1}]', b"[1]", b"trtllm_x 3", b"vllm:num_requests_running 1"])
def test_a_page_without_tensorrt_llms_numbers_is_unreadable(page: bytes) -> None:
    with pytest.raises(Unreadable):
        trtllm.read_metrics(page, Which())


# -- all ---------------------------------------------------------------------------------------------------------------


def test_kinds_are_told_by_the_owner_of_their_models() -> None:
    kinds = [kind_of(owner) for owner in ("vllm", "sglang", "tensorrt_llm", "me", "")]
    assert [kind and kind.name for kind in kinds] == ["vllm", "sglang", "trtllm", None, None]


def test_kinds_of_models_with_another_owner_are_told_by_their_metrics() -> None:
    pages = (b"# HELP\nvllm:x 1", b"sglang:x 1", b"# TYPE trtllm_x gauge", b"process_start_time_seconds 3", b"")
    kinds = [kind_by_metrics(page) for page in pages]
    assert [kind and kind.name for kind in kinds] == ["vllm", "sglang", "trtllm", None, None]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("page", [b"", b"\xff", b"[1]", b'{"version":3}', b"[" * 100_000])
def test_a_page_that_a_kind_does_not_write_is_unknown(name: str, page: bytes) -> None:
    kind = KINDS[name]
    for path in kind.about_pages:
        with pytest.raises(Unknown):
            kind.read_about(path, page, None, "10.0.0.5:8000")


def test_vllms_event_source_is_that_of_the_rank() -> None:
    sources = {str(rank): {"endpoint": f"tcp://*:{5557 + rank}", "publisher": "zmq"} for rank in range(2)}
    page = json.dumps(sources).encode()
    assert vllm.read_about("/kv_event_sources", page, 1, "h:8000").source == EventSource("tcp://h:5558")
    assert vllm.read_about("/kv_event_sources", page, 2, "h:8000").source is None
    assert vllm.read_about("/kv_event_sources", b"{}", None, "h:8000").source is None


# -- adapters ----------------------------------------------------------------------------------------------------------


def use(*running: str, slots: int = 2) -> AdapterUse:
    return AdapterUse(frozenset(running), slots=slots)


def test_the_adapters_that_ran_last_are_resident_as_many_as_have_room() -> None:
    residency, known = Residency(), ("a", "b", "c")
    looks = [use("b"), use(), use("a"), use("c"), use("a", "c")]
    assert [residency.note(each, known) for each in looks] == [("b",), ("b",), ("a", "b"), ("a", "c"), ("a", "c")]


def test_an_adapter_that_the_engine_does_not_know_any_more_is_not_resident() -> None:
    residency = Residency()
    assert residency.note(use("a", "b"), ("a", "b")) == ("a", "b")
    assert residency.note(use("a", "stranger"), ("a",)) == ("a",)


def test_without_word_of_slots_residents_are_bounded_all_the_same() -> None:
    names = [f"a{number:04}" for number in range(1000)]
    assert len(Residency().note(use(*names, slots=0), names)) == 256
