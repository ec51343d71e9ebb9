"""The configuration file, read again while running."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from picker.config import Config
from picker.config_source import ConfigSource
from picker.reload import LIVE, Reload, merged
from picker.settings.reference import settings_of


class Running:
    """A picker as far as its configuration goes."""

    def __init__(self, folder: Path, text: str = "pool: a\n"):
        self.path = folder / "picker.yaml"
        self.path.write_text(text)
        source = ConfigSource(self.path, {"drain_s": 7.0})
        self.applied: list[Config] = []
        self.reload = Reload(source, source.read(), self.applied.append)

    def write(self, text: str) -> dict[str, object]:
        self.path.write_text(text)
        with capture_logs() as logs:
            self.reload.read()
        [entry] = logs
        return dict(entry)


def test_what_may_change_does_and_the_log_says_what(tmp_path: Path) -> None:
    running = Running(tmp_path)
    entry = running.write("pool: a\npolicy: random\nrewrites: {x: y}\n")
    assert entry["changed"] == ["policy: expected-delay -> random", 'rewrites: {} -> {"x":"y"}']
    assert [(each.policy, each.rewrites) for each in running.applied] == [("random", {"x": "y"})]


def test_what_needs_a_restart_waits_and_the_log_says_so(tmp_path: Path) -> None:
    running = Running(tmp_path)
    entry = running.write("pool: b\nfallbacks: 0\nredis: redis://:secret@h\n")
    assert (entry["log_level"], entry["changed"]) == ("warning", ["fallbacks: 2 -> 0"])
    assert entry["needs_restart"] == ["redis: redis://127.0.0.1:6379 -> redis://***@h", "pool: a -> b"]
    assert [(each.pool, each.fallbacks) for each in running.applied] == [("a", 0)]


@pytest.mark.parametrize("text", ["policy: nope", "pool: [", "polcy: x", "profiles: [{weights: {nope: 1}}]"])
def test_a_file_that_is_wrong_changes_nothing(tmp_path: Path, text: str) -> None:
    running = Running(tmp_path)
    entry = running.write(f"{text}\n")
    assert (entry["event"], entry["consequence"]) == ("config_reload_refused", "nothing changed")
    assert running.applied == []


def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.path.unlink()
    with capture_logs() as logs:
        running.reload.read()
    assert [entry["event"] for entry in logs] == ["config_reload_refused"]
    assert running.applied == []


def test_options_of_the_command_line_outlive_the_file(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.write("drain_s: 99.0\npolicy: random\n")
    assert running.applied[0].drain_s == 7.0


def test_the_same_file_changes_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path)
    assert running.write("# only a comment\npool: a\n")["changed"] == []
    assert running.applied == []


def test_changes_add_up(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.write("pool: a\npolicy: random\n")
    assert running.write("pool: a\npolicy: random\nfallbacks: 1\n")["changed"] == ["fallbacks: 2 -> 1"]
    assert (running.applied[-1].policy, running.applied[-1].fallbacks) == ("random", 1)


def test_quotas_and_weights_of_admission_change_and_the_rest_of_it_waits(tmp_path: Path) -> None:
    running = Running(tmp_path)
    entry = running.write(
        "pool: a\nplacement: {m: [w1]}\nadmission: {scan: 1, tenants: {x: 2}, quotas: [{requests_per_s: 1}]}\n"
    )
    assert [each.partition(":")[0] for each in entry["changed"]] == [  # type: ignore[attr-defined]
        "placement", "admission.tenants", "admission.quotas"
    ]  # fmt: skip
    assert entry["needs_restart"] == ["admission.scan: 16 -> 1"]
    [applied] = running.applied
    assert (applied.admission.tenants, applied.admission.scan) == ({"x": 2.0}, 16)
    assert (len(applied.admission.quotas), applied.placement) == (1, {"m": ("w1",)})


def test_every_live_setting_is_a_setting_and_taken_over() -> None:
    assert {setting.path for setting in settings_of(Config)} >= LIVE
    wanted = msgspec.structs.replace(Config(), policy="random", pool="other")
    assert (merged(Config(), wanted).policy, merged(Config(), wanted).pool) == ("random", "default")
