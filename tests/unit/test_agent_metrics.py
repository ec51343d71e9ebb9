"""Reading engines' metrics pages: vLLM's here, the others' names in test_agent_engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from picker.agent.engines.vllm import read_metrics
from picker.agent.metrics import AdapterUse, Counters, Metrics, Unreadable, Which, has_restarted, rates

PAGE = (Path(__file__).parents[1] / "data" / "metrics" / "vllm_overload.txt").read_text()


def parse(page: str, rank: int | None = None, model: str = "") -> Metrics:
    return read_metrics(page.encode(), Which(rank, model))


def test_a_captured_page_of_an_overloaded_engine_is_read() -> None:
    metrics = parse(PAGE)
    assert (metrics.running, metrics.waiting, metrics.sleeps) == (4, 8, False)
    assert metrics.kv_used == pytest.approx(0.2532, abs=1e-4)
    assert metrics.kv_capacity_tokens == 80 * 32
    assert metrics.ranks == {"0"}
    assert metrics.counters.successes == 90
    assert metrics.counters.generation_tokens == 1455
    assert metrics.counters.steps == 721


def test_prompt_tokens_exclude_cached_ones_and_give_the_queue_in_tokens() -> None:
    page = (
        'vllm:prompt_tokens_total{engine="0"} 1000.0\nvllm:prompt_tokens_cached_total{engine="0"} 400.0\n'
        'vllm:request_success_total{engine="0",finished_reason="stop"} 6.0\nvllm:num_requests_waiting{engine="0"} 3.0\n'
    )
    assert parse(page).counters.prompt_tokens == 600
    assert parse(page).waiting_tokens == 300


def test_tokens_looked_up_and_found_in_the_prefix_cache_are_counted() -> None:
    page = (
        'vllm:prefix_cache_queries_total{engine="0"} 1000.0\nvllm:prefix_cache_hits_total{engine="0"} 640.0\n'
        'vllm:prefix_cache_queries_total{engine="1"} 1.0\nvllm:external_prefix_cache_queries_total{engine="0"} 9.0\n'
    )
    counters = parse(page, rank=0).counters
    assert (counters.looked_up_tokens, counters.reused_tokens) == (1000, 640)


def test_ranks_are_told_apart_or_taken_together() -> None:
    other = PAGE.replace('engine="0"', 'engine="1"').replace("num_requests_running{", 'num_requests_running{more="",')
    both = PAGE + other
    assert parse(both).running == 8
    assert parse(both, rank=1).running == 4
    assert parse(both, rank=1).kv_capacity_tokens == 2560
    assert parse(both).ranks == {"0", "1"}


def test_a_sleeping_engine_is_noticed() -> None:
    assert parse(PAGE.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')).sleeps


def test_a_version_without_a_series_counts_as_zero() -> None:
    assert parse('vllm:num_requests_running{engine="0"} 2.0') == Metrics(running=2, ranks=frozenset({"0"}))


@pytest.mark.parametrize(
    "page",
    ["", "<html>", "vllm:num_requests_running{ 3", 'vllm:num_requests_running{engine="0"} NaN', "sglang:num 3"],
)
def test_a_page_without_vllms_numbers_is_unreadable(page: str) -> None:
    with pytest.raises(Unreadable):
        parse(page)


def test_a_rank_that_is_not_there_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="rank 3"):
        parse('vllm:num_requests_running{engine="0"} 1.0', rank=3)


def test_rates_are_differences_over_time() -> None:
    assert rates(Counters(100, 10, 1), Counters(300, 40, 2), 2.0) == (100.0, 15.0)


def test_rates_are_zero_over_a_restart_and_over_no_time() -> None:
    assert rates(Counters(100, 10, 1), Counters(300, 4, 2), 2.0) == (0.0, 0.0)
    assert rates(Counters(), Counters(300, 4, 2), 0.0) == (0.0, 0.0)


def test_prompt_tokens_that_shrink_for_a_moment_are_no_negative_rate() -> None:
    assert rates(Counters(100, 10, 1), Counters(90, 20, 1), 1.0) == (0.0, 10.0)


def test_another_start_time_or_a_counter_that_went_back_is_a_restart() -> None:
    metrics = parse(PAGE)
    assert not has_restarted(metrics, metrics)
    assert has_restarted(metrics, replace(metrics, started_at=metrics.started_at + 1))
    assert has_restarted(metrics, replace(metrics, counters=Counters()))


def test_a_size_that_no_engine_can_mean_is_none() -> None:
    text = 'vllm:cache_config_info{kv_cache_size_tokens="%s",num_gpu_blocks="%s",block_size="16",engine="0"} 1\n'
    for absurd in ("1" + "0" * 100, "-1", "x", "１２"):
        assert parse(text % (absurd, absurd)).kv_capacity_tokens == 0


def test_first_tokens_and_errors_are_counted() -> None:
    first_tokens = 'vllm:time_to_first_token_seconds_count{engine="0"} 94.0\n'
    errors = 'vllm:request_success_total{engine="0",finished_reason="error"} 7.0\n'
    counters = parse(PAGE + first_tokens + errors).counters
    assert (counters.first_tokens, counters.errors) == (94, 7)


def test_models_on_one_page_are_told_apart() -> None:
    other = PAGE.replace('model_name="tiny-llama"', 'model_name="other"').replace("running{", 'running{more="",')
    both = PAGE + other
    assert parse(both).running == 8
    assert parse(both, model="other").running == 4
    assert parse(both, model="other").counters.successes == 90
    with pytest.raises(Unreadable, match="model absent"):
        parse('vllm:num_requests_running{engine="0",model_name="there"} 1.0', model="absent")


def test_the_newest_series_tells_which_adapters_are_in_use() -> None:
    line = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="%s",waiting_lora_adapters="%s"} %f\n'
    page = PAGE + line % ("a,b", "", 10.0) + line % ("c, d", "e", 30.5) + line % ("b", "a", 20.0)
    assert parse(page).adapters == AdapterUse(frozenset({"c", "d"}), frozenset({"e"}), 2)
    assert parse(PAGE + line % ("", "", 1.0)).adapters == AdapterUse(slots=2)
    assert parse(PAGE).adapters == AdapterUse()
