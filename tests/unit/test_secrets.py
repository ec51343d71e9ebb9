"""Passwords stand in files and URLs of the configuration, and nowhere that people look at."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from picker.agent.config import AgentConfig, WorkerConfig
from picker.cli import app
from picker.config import Config, redacted
from picker.config_files import ConfigError
from picker.settings.explain import explained
from picker.settings.values import changes
from picker.telemetry.trace_settings import Traces
from tests.unit.test_connection import PASSWORDS

HIDDEN = [url for url in PASSWORDS if "://" in url] + [
    "redis+sentinel://user:s3cret@one:1,two:2/primary",
    "redis+cluster://:s3c@one,s3c@two",
    "redis://host?password=s3cret&db=1",
    "redis://host?db=1&PASSWORD=s3cret",
]


@pytest.mark.parametrize("url", HIDDEN)
def test_a_configuration_that_is_shown_hides_passwords(url: str) -> None:
    config = Config(redis=url, traces=Traces(endpoint=url), tokenizers={"m": url})
    explanation = "\n".join(explained(config, yaml.safe_dump(msgspec.to_builtins(config)), "p.yaml"))
    difference = "\n".join(map(str, changes(Config(), config)))
    for told in (redacted(config), explanation, difference):
        assert "s3c" not in told


@pytest.mark.parametrize("url", HIDDEN)
def test_an_agents_configuration_that_is_shown_hides_passwords(url: str) -> None:
    config = AgentConfig(redis=url, workers=[WorkerConfig(url=url, endpoint="10.0.0.1:1")])
    assert "s3c" not in "\n".join(explained(config, "", "a.yaml"))


def test_what_is_no_secret_of_a_url_is_shown() -> None:
    told = redacted(Config(redis="redis://user:pw@host:6379/2?db=1&socket_timeout=3"))
    assert "redis: redis://***@host:6379/2?db=1&socket_timeout=3" in told


@pytest.mark.parametrize("url", ["http://u:s3cret@host:port", "ftp://u:s3cret@host", "http://u:s3cret@"])
def test_a_workers_url_that_is_wrong_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WorkerConfig(url=url)
    assert "s3c" not in str(raised.value)


@pytest.mark.parametrize("redis", ["redis://:s3cret@host:6379", "redis://:s3c/ret@[host", "'redis://:s3cret@host'x"])
def test_config_check_prints_no_password_of_a_file_right_or_wrong(redis: str, tmp_path: Path) -> None:
    file = tmp_path / "picker.yaml"
    file.write_text(f"pool: p\nredis: {redis}\n")
    assert "s3c" not in CliRunner().invoke(app, ["config", "check", str(file)]).output


def test_keys_are_read_from_files_and_not_kept_in_settings(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret")
    worker = WorkerConfig(url="http://10.0.0.1:1", api_key_file=str(file))
    assert worker.headers() == {"authorization": "Bearer s3cret"}
    shown = "\n".join(explained(AgentConfig(redis="redis://h", workers=[worker]), "", "a.yaml"))
    assert "s3cret" not in shown
