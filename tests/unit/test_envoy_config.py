from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from picker import envoy_config
from picker.cli import app


@pytest.mark.parametrize("name", envoy_config.NAMES)
def test_each_address_and_nothing_else_is_put_in(name: str) -> None:
    before = envoy_config.text(name).splitlines()
    after = envoy_config.text(name, listen="0.0.0.0:80", admin="[::1]:81", picker="10.0.0.7:82").splitlines()
    changed = [line.strip() for line, old in zip(after, before, strict=True) if line != old]
    assert changed == [
        'admin: {address: {socket_address: {address: "::1", port_value: 81}}}',
        "address: {socket_address: {address: 0.0.0.0, port_value: 80}}",
        "- endpoint: {address: {socket_address: {address: 10.0.0.7, port_value: 82}}}",
    ]


def test_addresses_may_be_swapped() -> None:
    config = envoy_config.load("fail-open", listen=envoy_config.ADMIN, admin=envoy_config.LISTEN)
    assert config["admin"]["address"]["socket_address"]["port_value"] == 10000
    assert config["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] == 9901


@pytest.mark.parametrize("name", envoy_config.NAMES)
def test_a_picker_with_a_name_is_looked_up(name: str) -> None:
    clusters = envoy_config.load(name, picker="picker.inference.svc:9002")["static_resources"]["clusters"]
    assert [cluster["type"] for cluster in clusters if cluster["name"] == "picker"] == ["STRICT_DNS"]


def test_each_process_of_a_picker_is_an_endpoint() -> None:
    both = "10.0.0.7:9002,[fd00::7]:9003"
    *_, cluster = envoy_config.load("full-duplex", picker=both)["static_resources"]["clusters"]
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    addresses = [one["endpoint"]["address"]["socket_address"] for one in endpoints]
    assert addresses == [{"address": "10.0.0.7", "port_value": 9002}, {"address": "fd00::7", "port_value": 9003}]


@pytest.mark.parametrize("address", ["", "a:1,", "9002", "a:", "a:b", "a:0", "a:70000", "a}:1", "a b:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(envoy_config.BadAddress, match="picker: "):
        envoy_config.text("fail-open", picker=address)


def test_envoy_cannot_listen_on_a_name() -> None:
    with pytest.raises(envoy_config.BadAddress, match="listen: 'localhost' is a name"):
        envoy_config.text("fail-open", listen="localhost:10000")


def test_the_command_lists_prints_and_writes(tmp_path: Path) -> None:
    run = CliRunner().invoke
    listed = run(app, ["envoy", "--list"]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(envoy_config.NAMES)
    printed = run(app, ["envoy", "full-duplex", "--picker", "10.0.0.7:9002"]).stdout
    assert printed == envoy_config.text("full-duplex", picker="10.0.0.7:9002")
    assert printed.startswith("# ") and yaml.safe_load(printed)
    assert run(app, ["envoy", "gateway", "--output", str(tmp_path / "envoy.yaml")]).stdout == ""
    assert (tmp_path / "envoy.yaml").read_text() == envoy_config.text("gateway")


@pytest.mark.parametrize("arguments", [["nope"], ["--picker", "nope"], ["--output", "/nowhere/envoy.yaml"]])
def test_the_command_says_what_is_wrong_with_its_arguments(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["envoy", *arguments])
    assert result.exit_code == 2
    assert arguments[-1] in result.stderr
