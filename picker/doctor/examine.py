"""Reads what the checks need, from a running Envoy and a running picker or from a file, and runs them."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from picker.doctor import checks, state
from picker.doctor.configuration import NotEnvoys, parse, ways
from picker.doctor.finding import Finding, Severity

_TIMEOUT_S = 10.0


class CannotExamine(RuntimeError):
    """The source cannot be read, or is not what it should be. The message says which, why and what to do."""


def examine_file(path: Path, picker: str | None = None) -> list[Finding]:
    """A bootstrap, or a configuration dump that was saved. Raises CannotExamine."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CannotExamine(f"{path}: cannot be read as YAML or JSON: {error}") from None
    return _checked(data, str(path), picker)


def examine_envoy(admin: str, metrics: str, picker: str | None = None, seconds: float = 1.0) -> list[Finding]:
    """A running Envoy by its admin address, and a picker by its metrics address, both as http://host:port.

    Counters are read twice, so many `seconds` apart. Raises CannotExamine if Envoy cannot be read; a picker that cannot
    is a finding.
    """
    dump = _json(f"{admin}/config_dump")
    findings = _checked(dump, admin, picker)
    stats, counted = _stats(admin), _metrics(metrics)
    time.sleep(seconds)
    findings += state.check_envoy(stats, _stats(admin), seconds)
    later = _metrics(metrics)
    if counted is None or later is None:
        return [*findings, _unread(metrics)]
    hosts = state.host_counts(_json(f"{admin}/clusters?format=json"))
    findings += state.check_picker(counted, later, seconds)
    return findings + state.check_clusters(ways(parse(dump), picker), hosts, later)


def _checked(data: Any, source: str, picker: str | None) -> list[Finding]:
    try:
        return checks.check(parse(data), picker)
    except NotEnvoys as error:
        raise CannotExamine(f"{source}: {error}") from None
    # Whoever wrote the file may have put anything anywhere, which is for Envoy to tell in detail.
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CannotExamine(f"{source}: Envoy would not take this ({error!r}); try: envoy --mode validate -c") from None


def _stats(admin: str) -> dict[str, float]:
    return state.counters(_json(f"{admin}/stats?format=json&usedonly"))


def _metrics(url: str) -> dict[str, float] | None:
    """Sums over labels, by name."""
    try:
        text = _read(f"{url}/metrics").decode()
    except CannotExamine:
        return None
    total: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            total[sample.name] += sample.value  # type: ignore[assignment]
    return dict(total)


def _json(url: str) -> Any:
    try:
        return json.loads(_read(url))
    except ValueError:
        raise CannotExamine(f"{url} does not answer as Envoy's admin interface does") from None


def _read(url: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise CannotExamine(f"{url}: not an address such as http://127.0.0.1:9901")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:
            data: bytes = reply.read()
            return data
    except OSError as error:
        raise CannotExamine(f"{url} cannot be read: {error}; is it running, and is this its address?") from None


def _unread(url: str) -> Finding:
    return Finding(
        check="picker-unread",
        severity=Severity.WARNING,
        where=url,
        what="the picker's metrics cannot be read",
        causes="whether picks are followed, and whether Envoy knows the workers, was not checked",
        fix="if the picker runs, say where: --metrics http://HOST:PORT",
    )
