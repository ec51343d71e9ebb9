"""The agent's configuration, and the messages for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from picker.agent.config import AgentConfig
from picker.config_files import ConfigError, load, parse

MINIMAL = "redis: redis://r:6379\nworkers:\n  - url: http://10.0.0.5:8000\n"


def read(text: str) -> AgentConfig:
    return parse(text, AgentConfig, "agent.yaml")


def test_a_worker_needs_only_its_url() -> None:
    (worker,) = read(MINIMAL).workers
    assert (worker.endpoint, worker.name, worker.rank) == ("10.0.0.5:8000", "10.0.0.5:8000", None)
    assert (worker.kv_events, worker.kv_replay, worker.labels) == (None, None, {})


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://10.0.0.5", "10.0.0.5:80"),
        ("https://10.0.0.5/base", "10.0.0.5:443"),
        ("http://[FD00:0::5]:8000", "[fd00::5]:8000"),
        ("http://localhost:8000", "127.0.0.1:8000"),
    ],
)
def test_the_endpoint_follows_from_the_url(url: str, endpoint: str) -> None:
    assert read(MINIMAL.replace("http://10.0.0.5:8000", url)).workers[0].endpoint == endpoint


def test_a_rank_is_part_of_the_name() -> None:
    config = read(MINIMAL + "    rank: 0\n  - url: http://10.0.0.5:8000\n    rank: 1\n")
    assert [worker.name for worker in config.workers] == ["10.0.0.5:8000/0", "10.0.0.5:8000/1"]


WRONG = {
    MINIMAL.replace("url", "ur"): "agent.yaml: workers[0].ur is not a setting; did you mean url?",
    MINIMAL + "pol: x\n": "agent.yaml: pol is not a setting; did you mean pool?",
    MINIMAL + "zzzzzzzz: x\n": "agent.yaml: zzzzzzzz is not a setting; there are: redis, pool, workers, ",
    "redis: redis://r\nworkers:\n  - endpoint: h:1\n": "agent.yaml: workers[0].url is missing",
    MINIMAL.replace(
        "10.0.0.5", "gpu-7"
    ): "agent.yaml: workers[0]: gpu-7:8000 is no address that Envoy can be told; set",
    "": "agent.yaml: redis is missing",
    "redis: redis://r\nworkers: []\n": "no workers: set workers, workers_file or kubernetes",
    MINIMAL.replace("http://10.0.0.5:8000", "[1]"): "agent.yaml: workers[0].url: expected `str`, got `array`",
    MINIMAL.replace("http://", ""): "agent.yaml: workers[0]: 10.0.0.5:8000 is not a URL such as",
    MINIMAL.replace("10.0.0.5:8000", "10.0.0.5:x"): "agent.yaml: workers[0]: http://10.0.0.5:x is not a URL",
    MINIMAL.replace("10.0.0.5", ""): "agent.yaml: workers[0]: http://:8000 names no host",
    MINIMAL + "  - url: http://10.0.0.5:8000\n": "two workers are called 10.0.0.5:8000; give them a name",
    MINIMAL + "    kv_replay: tcp://h:1\n": "agent.yaml: workers[0]: kv_replay is set without kv_events",
    MINIMAL + "    labels: {zone: 3}\n": "agent.yaml: workers[0].labels[...]: expected `str`, got `int`",
    MINIMAL + "probe_interval_s: 0\n": "agent.yaml: probe_interval_s: expected `float` > 0",
    MINIMAL + "workers: [": "agent.yaml:4: is not YAML: ",
    "- a\n": "agent.yaml: the file: expected `object`, got `array`",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=WRONG.values())
def test_a_wrong_configuration_is_refused_with_a_message_that_says_where_and_what_to_do(
    text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert message in str(caught.value)


def test_a_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(MINIMAL)
    assert load(path, AgentConfig).redis == "redis://r:6379"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        load(tmp_path / "absent.yaml", AgentConfig)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match=r"binary\.yaml: is not text"):
        load(tmp_path / "binary.yaml", AgentConfig)
