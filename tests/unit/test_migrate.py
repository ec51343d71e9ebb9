"""Other routers' configurations, read into ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from picker.cli import app
from picker.config import Config
from picker.config_checks import check
from picker.config_files import parse
from picker.kubernetes.settings import KubernetesPool
from picker.migrate.durations import duration_s
from picker.migrate.epp import UnknownFlag, drop_in
from picker.migrate.flags import Flag, flags
from picker.migrate.imported import Imported
from picker.migrate.sources import NotUnderstood, read

LLM_D = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: prefix-cache-scorer, name: prefix}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
- {type: single-profile-handler}
- {type: label-selector-filter, parameters: {matchLabels: {gpu: h100},
   matchExpressions: [{key: zone, operator: In, values: [a, b]}, {key: x, operator: Exists}]}}
- {type: utilization-filter, parameters: {conditions: [{type: kv-cache-utilization, threshold: 0.9}]}}
- {type: something-new}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: prefix, weight: 3}, {pluginRef: gone}]
flowControl: {defaultRequestTTL: 1m30s, maxRequests: 10}
saturationDetector: {}
"""


def usable(imported: Imported) -> Config:
    """The written file is one that `picker serve` takes."""
    config = parse(imported.text(), Config, "picker.yaml")
    check(config)
    return config


def write(folder: Path, text: str) -> list[str]:
    path = folder / "epp.yaml"
    path.write_text(text)
    return [str(path)]


def test_an_endpoint_picker_config_keeps_filters_limits_and_fallbacks(tmp_path: Path) -> None:
    imported = read(write(tmp_path, LLM_D))
    config = usable(imported)
    assert config.fallbacks == 2
    [profile] = config.profiles
    assert profile.require == {"gpu": ("h100",), "zone": ("a", "b")}
    assert profile.limits.kv_used == 0.9


@pytest.mark.parametrize(
    "expected",
    [
        "plugins[queue-scorer]: part of the policy expected-delay",
        "plugins[prefix]: part of the policy expected-delay",
        "plugins[label-selector-filter]: matchExpressions with 'Exists' has no counterpart",
        "plugins[something-new]: 'something-new' has no counterpart",
        "schedulingProfiles[default]: names plugins that are not there: gone",
        "schedulingProfiles[default]: the weights of queue-scorer, prefix have no meaning here",
        "flowControl.defaultRequestTTL: 90 s",
        "flowControl.maxRequests: waiting",
        "saturationDetector: has no counterpart",
    ],
)
def test_each_thing_that_differs_has_a_note(tmp_path: Path, expected: str) -> None:
    assert any(note.startswith(expected) for note in read(write(tmp_path, LLM_D)).notes)


def test_it_is_found_in_a_charts_config_map(tmp_path: Path) -> None:
    config_map = {"kind": "ConfigMap", "data": {"other": ": no", "default-plugins.yaml": LLM_D}}
    assert usable(read(write(tmp_path, yaml.safe_dump(config_map)))).fallbacks == 2


@pytest.mark.parametrize("text", ["kind: Pod", "- a", "a: [", "kind: ConfigMap"])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(NotUnderstood, match=r"epp\.yaml"):
        read(write(tmp_path, text))


JUNK: list[dict[str, Any]] = [
    {"plugins": "x"},
    {"plugins": [1, {"type": []}]},
    {"flowControl": {"defaultRequestTTL": []}},
    {"schedulingProfiles": [{"plugins": [{}]}]},
    {"plugins": [{"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": "x"}}]},
]


@pytest.mark.parametrize("junk", JUNK)
def test_nonsense_inside_becomes_notes_and_no_error(tmp_path: Path, junk: dict[str, Any]) -> None:
    usable(read(write(tmp_path, yaml.safe_dump({"kind": "EndpointPickerConfig"} | junk))))


def test_sglangs_command_line() -> None:
    words = (
        "python3 -m sglang_router.launch_router --policy cache_aware --worker-urls http://a:1 http://b:2 "
        "--cb-failure-threshold 10 --prometheus-port=29000 --retry-max-retries 5 --unheard-of"
    )
    imported = read(words.split())
    config = usable(imported)
    assert (config.policy, config.breaker.failures, config.metrics) == ("expected-delay", 10, "0.0.0.0:29000")
    text = " ".join(imported.text().replace("#", "").split())
    assert "picker agent --worker http://a:1 --worker http://b:2" in text
    assert "--retry-max-retries: Envoy's business" in text
    assert "--unheard-of: not known here" in text
    assert "--m:" not in text


def test_the_production_stacks_command_line() -> None:
    words = (
        "vllm-router --routing-logic session --static-backends http://a:1,http://b:2 --static-aliases gpt:llama,x:y "
        "--max-instance-failover-reroute-attempts 3"
    )
    config = usable(imported := read(words.split()))
    assert (config.policy, config.fallbacks, config.rewrites) == ("session-hash", 3, {"gpt": "llama", "x": "y"})
    assert imported.workers == ["http://a:1", "http://b:2"]


def test_aibrixs_environment_and_flags() -> None:
    words = "ROUTING_ALGORITHM=power-of-two REDIS_HOST=cache REDIS_PASSWORD=s3cret gateway --grpc-bind-address :50052"
    config = usable(imported := read(words.split()))
    assert (config.policy, config.redis, config.listen) == ("power-of-two", "redis://cache:6379", "0.0.0.0:50052")
    assert "s3cret" not in imported.text()


def test_an_unknown_policy_is_noted_and_the_default_stays() -> None:
    imported = read(["router", "--policy", "astrology"])
    assert usable(imported).policy == Config().policy
    assert any("'astrology' has no counterpart" in note for note in imported.notes)


def test_a_value_that_is_no_number_is_noted() -> None:
    imported = read(["router", "--policy", "random", "--cb-failure-threshold", "many"])
    usable(imported)
    assert any("'many' is no value for breaker.failures" in note for note in imported.notes)


def test_a_line_break_in_a_value_does_not_leave_the_comment() -> None:
    imported = read(["router", "--policy", "x\npool: stolen"])
    assert usable(imported).pool == Config().pool


def test_an_unknown_command_line_says_which_are_known() -> None:
    with pytest.raises(NotUnderstood, match="--routing-logic"):
        read(["nginx", "-g", "daemon off;"])


CHART = (
    "--pool-name pool --pool-namespace ns --pool-group inference.networking.x-k8s.io "
    "--grpc-port 9002 --grpc-health-port 9003 --metrics-port 9090"
)


def test_the_flags_that_charts_pass_are_settings() -> None:
    imported = drop_in(f"{CHART} --secure-serving=true --zap-encoder json -v 4 --drain-timeout 45s".split())
    config = usable(imported)
    assert (config.pool, config.listen, config.health) == ("pool", "0.0.0.0:9002", "0.0.0.0:9003")
    assert (config.metrics, config.log_format, config.drain_s) == ("0.0.0.0:9090", "json", 45.0)
    assert config.kubernetes == KubernetesPool(namespace="ns", group="inference.networking.x-k8s.io")
    assert config.tls is not None, "gateways expect encryption unless told otherwise"


def test_without_a_namespace_there_is_no_cluster_to_ask() -> None:
    assert usable(drop_in(["--pool-name", "p"])).kubernetes is None


def test_plain_text_is_served_where_the_chart_says_so() -> None:
    assert usable(drop_in(["--pool-name", "p", "--secure-serving=false"])).tls is None


def test_mounted_certificates_are_used() -> None:
    tls = usable(drop_in(["--pool-name", "p", "--cert-path", "/certs/"])).tls
    assert tls is not None
    assert (tls.cert, tls.key) == ("/certs/tls.crt", "/certs/tls.key")


@pytest.mark.parametrize("words", [["--confg", "x"], ["stray"], ["--pool-name", "p", "--nope"]])
def test_a_flag_that_nobody_has_is_an_error(words: list[str]) -> None:
    with pytest.raises(UnknownFlag, match="is no option"):
        drop_in(words)


def test_no_flags_are_no_settings() -> None:
    assert drop_in([]).settings == {}


def test_flags_are_read_in_every_spelling() -> None:
    assert list(flags(["prog", "-v", "4", "--a=b=c", "--list", "x", "y", "--on", "--n", "-1"])) == [
        Flag("v", ("4",)), Flag("a", ("b=c",)), Flag("list", ("x", "y")), Flag("on", ()), Flag("n", ("-1",)),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "1d", "30s "])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_s(text)


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    output = tmp_path / "picker.yaml"
    source = write(tmp_path, LLM_D)
    result = CliRunner().invoke(app, ["config", "import", "--output", str(output), *source])
    assert result.exit_code == 0, result.output
    assert parse(output.read_text(), Config, "picker.yaml").fallbacks == 2
    result = CliRunner().invoke(app, ["config", "import", "--", "router", "--policy", "round_robin"])
    assert result.stdout == "# Imported from a router of SGLang's kind. What differs:\npolicy: round-robin\n"
