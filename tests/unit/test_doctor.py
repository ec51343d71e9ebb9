"""Each fault, planted into a configuration that is shipped, is found; and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from picker import envoy_config
from picker.cli import app
from picker.doctor import remedies, state
from picker.doctor.checks import check
from picker.doctor.configuration import NotEnvoys, parse, ways
from picker.doctor.finding import Severity

DESTINATION = "x-gateway-destination-endpoint"
Json = dict[str, Any]
Plant = Callable[["Parts"], Any]


class Parts:
    """The places of a shipped configuration where faults are planted."""

    def __init__(self, config: Json):
        resources = config["static_resources"]
        self.listener = resources["listeners"][0]
        self.manager = self.listener["filter_chains"][0]["filters"][0]["typed_config"]
        self.table = self.manager["route_config"]
        self.host = self.table["virtual_hosts"][0]
        self.route = self.host["routes"][0]
        self.filters = self.manager["http_filters"]
        self.ext_proc = self.filters[0]["typed_config"]
        self.mode = self.ext_proc["processing_mode"]
        self.workers, self.picker = resources["clusters"]
        (self.http2,) = (
            options["explicit_http_config"]["http2_protocol_options"]
            for options in self.picker["typed_extension_protocol_options"].values()
        )


def unpick(parts: Parts) -> Json:
    """The override_host policy's configuration."""
    policy: Json = parts.workers["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]
    return policy


def move_strip_to_route(parts: Parts) -> None:
    parts.route["request_headers_to_remove"] = [DESTINATION.title()]


PLANTED: dict[str, tuple[str, Plant, str]] = {
    "the picker's circuit breaker is at its default": (
        "fail-open",
        lambda p: p.picker.pop("circuit_breakers"),
        "circuit-breaker",
    ),
    "the picker's circuit breaker is too low": (
        "full-duplex",
        lambda p: p.picker["circuit_breakers"]["thresholds"][0].update(max_requests=10_000),
        "circuit-breaker",
    ),
    "only the breaker of high priority is raised": (
        "fail-open",
        lambda p: p.picker["circuit_breakers"]["thresholds"][0].update(priority="HIGH"),
        "circuit-breaker",
    ),
    "the workers' circuit breaker is at its default": (
        "fail-open",
        lambda p: p.workers.pop("circuit_breakers"),
        "circuit-breaker",
    ),
    "control frames are at their default": (
        "fail-open",
        lambda p: p.http2.pop("max_outbound_control_frames"),
        "control-frames",
    ),
    "streams to the picker are not retried": (
        "fail-closed",
        lambda p: p.ext_proc["grpc_service"].pop("retry_policy"),
        "grpc-retry",
    ),
    "a client's header is let in": (
        "fail-open",
        lambda p: p.manager.pop("early_header_mutation_extensions"),
        "header-strip",
    ),
    "a client's header is let in to any address": (
        "original-dst",
        lambda p: p.manager.pop("early_header_mutation_extensions"),
        "header-strip",
    ),
    "the header is removed on the route": ("fail-open", move_strip_to_route, "late-header-strip"),
    "the header is removed on the virtual host": (
        "fail-open",
        lambda p: p.host.update(request_headers_to_remove=[DESTINATION]),
        "late-header-strip",
    ),
    "the header is removed on the route table": (
        "fail-open",
        lambda p: p.table.update(request_headers_to_remove=[DESTINATION]),
        "late-header-strip",
    ),
    "metadata is not received": ("gateway", lambda p: p.ext_proc.pop("metadata_options"), "metadata-namespace"),
    "the buffer is at its default": (
        "fail-open",
        lambda p: p.listener.pop("per_connection_buffer_limit_bytes"),
        "buffer-limit",
    ),
    "a route's own buffer is small": (
        "fail-open",
        lambda p: p.route.update(request_body_buffer_limit=65536),
        "buffer-limit",
    ),
    "the message timeout is at its default": (
        "fail-open",
        lambda p: p.ext_proc.pop("message_timeout"),
        "message-timeout",
    ),
    "the message timeout is small": (
        "full-duplex",
        lambda p: p.ext_proc.update(message_timeout="0.750s"),
        "message-timeout",
    ),
    "requests cannot wait": (
        "fail-closed",
        lambda p: p.ext_proc.pop("max_message_timeout"),
        "longest-wait",
    ),
    "fail-open with any address": (
        "original-dst",
        lambda p: p.ext_proc.update(failure_mode_allow=True),
        "fail-open-original-dst",
    ),
    "fail-open in full duplex": (
        "full-duplex",
        lambda p: p.ext_proc.update(failure_mode_allow=True),
        "fail-open-full-duplex",
    ),
    "full duplex without request trailers": (
        "full-duplex",
        lambda p: p.mode.pop("request_trailer_mode"),
        "trailer-mode",
    ),
    "full duplex without response trailers": ("gateway", lambda p: p.mode.pop("response_trailer_mode"), "trailer-mode"),
    "full duplex where the end is not seen": (
        "full-duplex",
        lambda p: p.mode.pop("response_trailer_mode"),
        "trailer-mode",
    ),
    "full duplex without response headers": (
        "full-duplex",
        lambda p: p.mode.update(response_header_mode="SKIP"),
        "trailer-mode",
    ),
    "the picker does not see bodies": ("fail-open", lambda p: p.mode.pop("request_body_mode"), "request-mode"),
    "the picker does not see headers": (
        "fail-open",
        lambda p: p.mode.update(request_header_mode="SKIP"),
        "request-mode",
    ),
    "response bodies are streamed through the picker": (
        "fail-open",
        lambda p: p.mode.update(response_body_mode="STREAMED"),
        "response-body",
    ),
    "response bodies are held": ("fail-open", lambda p: p.mode.update(response_body_mode="BUFFERED"), "response-body"),
    "the route's timeout is at its default": ("fail-open", lambda p: p.route["route"].pop("timeout"), "route-timeout"),
    "the route's timeout is a minute": ("gateway", lambda p: p.route["route"].update(timeout="60s"), "route-timeout"),
    "the idle timeout is at its default": ("fail-open", lambda p: p.manager.pop("stream_idle_timeout"), "idle-timeout"),
    "the cluster balances by itself": (
        "fail-open",
        lambda p: p.workers.pop("load_balancing_policy"),
        "override-source",
    ),
    "the cluster reads another header": (
        "fail-open",
        lambda p: unpick(p).update(override_host_sources=[{"header": "x-other"}]),
        "override-source",
    ),
    "the route does not retry": ("fail-open", lambda p: p.route["route"].pop("retry_policy"), "route-retry"),
    "a list meets ORIGINAL_DST": (
        "original-dst",
        lambda p: p.workers.update(original_dst_lb_config={"use_http_header": True, "http_header_name": DESTINATION}),
        "original-dst-list",
    ),
    "outcomes are not told": ("gateway", lambda p: p.manager.pop("access_log"), "access-log"),
    "ext_proc is off on the only route": (
        "fail-open",
        lambda p: p.route.update(typed_per_filter_config={"envoy.filters.http.ext_proc": {"disabled": True}}),
        "no-filter",
    ),
    "there is no ext_proc": ("fail-open", lambda p: p.filters.pop(0), "no-filter"),
}


def checks_of(config: Json, picker: str | None = None) -> list[str]:
    return [finding.check for finding in check(parse(config), picker)]


@pytest.mark.parametrize("name", envoy_config.NAMES)
def test_nothing_is_wrong_with_a_shipped_configuration(name: str) -> None:
    assert checks_of(envoy_config.load(name)) == []


@pytest.mark.parametrize(("name", "plant", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_fault_is_found_and_nothing_else(name: str, plant: Plant, expected: str) -> None:
    config = envoy_config.load(name)
    plant(Parts(config))
    assert checks_of(config) == [expected]


def test_a_header_that_chooses_any_address_is_worse_than_one_that_chooses_a_worker() -> None:
    for name, severity in (("original-dst", Severity.ERROR), ("fail-open", Severity.WARNING)):
        config = envoy_config.load(name)
        del Parts(config).manager["early_header_mutation_extensions"]
        assert [finding.severity for finding in check(parse(config))] == [severity]


def test_a_filter_before_ext_proc_may_strip_the_header_and_one_behind_it_may_not() -> None:
    strip = {
        "name": "strip",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"remove": DESTINATION}]},
        },
    }
    for position, expected in ((0, []), (1, ["header-strip"])):
        config = envoy_config.load("fail-open")
        parts = Parts(config)
        del parts.manager["early_header_mutation_extensions"]
        parts.filters.insert(position, strip)
        assert checks_of(config) == expected


def test_metadata_is_as_good_a_source_of_the_pick_as_the_header() -> None:
    config = envoy_config.load("fail-open")
    source = {"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}
    unpick(Parts(config))["override_host_sources"] = [source]
    assert checks_of(config) == []


def test_a_route_without_the_picker_is_not_looked_at() -> None:
    config = envoy_config.load("fail-open")
    off = {"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "disabled": True}
    plain = {
        "match": {"path": "/metrics"},
        "route": {"cluster": "workers"},
        "typed_per_filter_config": {"envoy.filters.http.ext_proc": off},
    }
    Parts(config).host["routes"].insert(0, plain)
    assert checks_of(config) == []


def test_a_filter_that_is_off_until_a_route_turns_it_on_is_read_with_what_the_route_overrides() -> None:
    config = envoy_config.load("fail-closed")
    parts = Parts(config)
    parts.filters[0]["disabled"] = True
    assert checks_of(config) == ["no-filter"]
    per_route = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {"processing_mode": {**parts.mode, "request_body_mode": "NONE"}},
    }
    parts.route["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": per_route}
    assert checks_of(config) == ["request-mode"]


def test_of_several_ext_proc_filters_only_the_pickers_is_judged_if_it_is_named() -> None:
    config = envoy_config.load("fail-open")
    parts = Parts(config)
    other = {
        "@type": parts.ext_proc["@type"],
        "grpc_service": {"envoy_grpc": {"cluster_name": "translator"}},
        "processing_mode": {"request_body_mode": "BUFFERED"},
    }
    parts.filters.insert(0, {"name": "translator", "typed_config": other})
    assert set(checks_of(config)) == {"grpc-retry", "longest-wait", "message-timeout", "metadata-namespace"}
    assert checks_of(config, "picker") == []


def test_camel_case_field_names_mean_the_same() -> None:
    config = envoy_config.load("fail-open")
    listener = Parts(config).listener
    listener["perConnectionBufferLimitBytes"] = listener.pop("per_connection_buffer_limit_bytes")
    assert checks_of(config) == []


def dump_of(config: Json) -> Json:
    """As Envoy's /config_dump shows it when everything comes by xDS."""
    resources = config["static_resources"]
    listener = resources["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    table = {"name": "routes", **manager.pop("route_config")}
    manager["rds"] = {"route_config_name": "routes"}
    kind = "type.googleapis.com/envoy.admin.v3."
    return {
        "configs": [
            {"@type": kind + "BootstrapConfigDump", "bootstrap": {}},
            {
                "@type": kind + "ClustersConfigDump",
                "dynamic_active_clusters": [{"cluster": cluster} for cluster in resources["clusters"]],
            },
            {
                "@type": kind + "ListenersConfigDump",
                "dynamic_listeners": [{"active_state": {"listener": listener}}, {"warming_state": {}}],
            },
            {"@type": kind + "RoutesConfigDump", "dynamic_route_configs": [{"route_config": table}]},
        ]
    }


def test_a_dump_of_what_came_by_xds_is_read_as_well() -> None:
    assert checks_of(dump_of(envoy_config.load("gateway"))) == []
    config = envoy_config.load("gateway")
    del Parts(config).route["route"]["timeout"]
    assert checks_of(dump_of(config)) == ["route-timeout"]


@pytest.mark.parametrize("data", [None, [], {"listen": "127.0.0.1:9002"}, "text"])
def test_what_is_no_configuration_of_envoys_is_refused(data: Any) -> None:
    with pytest.raises(NotEnvoys, match="neither"):
        parse(data)


@pytest.mark.parametrize("name", [name for name in vars(remedies) if name.isupper()])
def test_a_remedy_is_what_the_shipped_files_say(name: str) -> None:
    shipped = [envoy_config.load(one) for one in envoy_config.NAMES]
    # One remedy has two parts, for two places.
    for part in yaml.safe_load_all(getattr(remedies, name).replace("# in the cluster:", "---")):
        remedy = part[0] if isinstance(part, list) else part
        assert any(occurs(remedy, config) for config in shipped)


def occurs(part: Any, whole: Any) -> bool:
    """Whether a value stands anywhere in another, which may have more keys."""
    inner = whole.values() if isinstance(whole, dict) else whole if isinstance(whole, list) else ()
    return covers(whole, part) or any(occurs(part, value) for value in inner)


def covers(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and covers(whole[key], value) for key, value in part.items())
    return bool(whole == part)


COUNTED = {
    "http.ingress.ext_proc.server_half_closed": "half-closed",
    "http.ingress.ext_proc.failure_mode_allowed": "failed-open",
    "http.ingress.ext_proc.streams_failed": "streams-failed",
    "http.ingress.ext_proc.message_timeouts": "message-timeouts",
    "http.ingress.ext_proc.prefix.message_timeouts": "message-timeouts",
    "cluster.picker.upstream_rq_active_overflow": "overflow",
    "cluster.picker.upstream_rq_pending_overflow": "overflow",
    "cluster.workers.original_dst_host_invalid": "original-dst-invalid",
    "cluster.picker.http2.outbound_control_flood": "control-flood",
}


@pytest.mark.parametrize(("name", "expected"), COUNTED.items())
def test_a_counter_of_envoys_that_ought_to_be_zero_is_named(name: str, expected: str) -> None:
    quiet = dict.fromkeys(COUNTED, 0.0) | {"http.ingress.ext_proc.streams_started": 9.0}
    assert state.check_envoy(quiet, quiet, 1.0) == []
    (finding,) = state.check_envoy(quiet, quiet | {name: 3.0}, 1.0)
    assert (finding.check, finding.where) == (expected, name)


def test_a_stream_that_failed_is_not_taken_for_one_that_was_closed() -> None:
    counted = {"http.ingress.ext_proc.streams_failed": 2.0, "http.ingress.ext_proc.server_half_closed": 4.0}
    assert [one.check for one in state.check_envoy({}, counted, 1.0)] == ["streams-failed"]
    counted["http.ingress.ext_proc.server_half_closed"] += 1
    assert [one.check for one in state.check_envoy({}, counted, 1.0)] == ["half-closed", "streams-failed"]


def test_a_counter_that_grows_is_told_from_one_that_is_over() -> None:
    name = "http.ingress.ext_proc.failure_mode_allowed"
    (growing,) = state.check_envoy({name: 5.0}, {name: 1_012.0}, 1.0)
    (over,) = state.check_envoy({name: 5.0}, {name: 5.0}, 1.0)
    assert "1,007 of them in the last 1 s" in growing.what
    assert "none lately" in over.what


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"picker_picks_not_honoured_total": 2.0}, ["picks-not-honoured"]),
        ({"picker_internal_errors_total": 1.0}, ["internal-errors"]),
        ({"picker_redis_connected": 0.0}, ["redis-away"]),
        ({"picker_workers_ready": 0.0}, ["no-workers"]),
    ],
)
def test_what_the_picker_says_of_itself_is_judged(change: dict[str, float], expected: list[str]) -> None:
    healthy = {"picker_redis_connected": 1.0, "picker_workers_ready": 4.0, "picker_picks_not_honoured_total": 0.0}
    assert [one.check for one in state.check_picker(healthy, healthy | change, 1.0)] == expected


@pytest.mark.parametrize(
    ("hosts", "expected"), [({"workers": 4}, []), ({"workers": 3}, ["workers-unknown"]), ({}, ["workers-unknown"])]
)
def test_a_cluster_that_lacks_workers_is_named(hosts: dict[str, int], expected: list[str]) -> None:
    found = ways(parse(envoy_config.load("fail-open")))
    assert [one.check for one in state.check_clusters(found, hosts, {"picker_workers_ready": 4.0})] == expected


def test_original_dst_needs_no_hosts() -> None:
    found = ways(parse(envoy_config.load("original-dst")))
    assert state.check_clusters(found, {"workers": 0}, {"picker_workers_ready": 4.0}) == []


def test_envoys_answers_are_read() -> None:
    stats = {"stats": [{"name": "a", "value": 2}, {"name": "text", "value": "b"}, {"histograms": {}}]}
    assert state.counters(stats) == {"a": 2.0}
    clusters = {"cluster_statuses": [{"name": "workers", "host_statuses": [{}, {}]}, {"name": "empty"}]}
    assert state.host_counts(clusters) == {"workers": 2, "empty": 0}


def test_the_exit_code_tells_problems_from_advice(tmp_path: Path) -> None:
    def exit_code(plant: Plant) -> tuple[int, list[Json]]:
        config = envoy_config.load("fail-open")
        plant(Parts(config))
        path = tmp_path / "envoy.json"
        path.write_text(json.dumps(config))
        result = CliRunner().invoke(app, ["doctor", "--json", "--config", str(path)])
        return result.exit_code, json.loads(result.stdout)

    assert exit_code(lambda p: None) == (0, [])
    code, (advice,) = exit_code(lambda p: p.manager.pop("access_log"))
    assert (code, advice["severity"]) == (0, "advice")
    code, (warning,) = exit_code(lambda p: p.manager.pop("stream_idle_timeout"))
    assert (code, warning["severity"], warning["fix"]) == (1, "warning", "stream_idle_timeout: 3600s")


def test_a_report_for_people_names_fault_cause_and_fix(tmp_path: Path) -> None:
    config = envoy_config.load("fail-open")
    del Parts(config).ext_proc["grpc_service"]["retry_policy"]
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(app, ["doctor", "--config", str(path)])
    assert result.exit_code == 1
    for text in (
        "warning: grpc_service has no retry_policy",
        "causes:",
        "retry_on: unavailable,cancelled,connect-failure,reset",
    ):
        assert text in result.stdout


@pytest.mark.parametrize("text", ["a: [", "[]", "static_resources: {listeners: 3}"])
def test_a_file_that_is_no_configuration_is_an_error_of_its_own(tmp_path: Path, text: str) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["doctor", "--config", str(path)])
    assert result.exit_code == 2
    assert str(path) in result.stderr
