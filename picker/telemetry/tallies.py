"""Counters and histograms for what happens with every request: plain numbers in dicts, made into metrics at a scrape.

prometheus_client's own take a lock for each step, five times what this takes; here only the event loop counts, and a
scrape copies before it reads.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from picker.telemetry.labels import OTHER

Values = tuple[str, ...]


class CounterTally(Collector):
    """Counts by label values, of at most `most` combinations; what is beyond them counts as `other`."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str], most: int):
        self._name = name
        self._text = text
        self._labelnames = tuple(labels)
        self._most = most
        self._counts: dict[Values, float] = {}
        registry.register(self)

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, values: Values, count: float = 1.0) -> None:
        """Counts."""
        counts = self._counts
        if values not in counts and len(counts) >= self._most:
            values = (OTHER,) * len(values)
        counts[values] = counts.get(values, 0.0) + count

    def keep(self, first: Container[str]) -> None:
        """Lets go of all combinations but those that begin with one of these, once there are so many as may be."""
        if len(self._counts) >= self._most:
            self._counts = {values: count for values, count in self._counts.items() if values[0] in first}

    def items(self) -> list[tuple[Values, float]]:
        """A copy."""
        return list(self._counts.items())

    def describe(self) -> Iterable[Metric]:
        """Of prometheus_client: the name alone."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        """Of prometheus_client."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labelnames)
        for values, count in self.items():
            family.add_metric(values, count)
        yield family


class _Buckets:
    __slots__ = ("counts", "exemplars", "sum")

    def __init__(self, count: int):
        self.counts = [0] * count
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}


class HistogramTally(Collector):
    """Distributions by the value of one label, at most `most` of them. `bounds` are the buckets' upper ends."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, label: str, bounds: Sequence[float], most: int = 100
    ):
        self._name = name
        self._text = text
        self._labelnames = (label,)
        self._bounds = tuple(bounds)
        self._most = most
        self._found: dict[str, _Buckets] = {}
        registry.register(self)

    def add(self, label: str, value: float, trace: str = "") -> None:
        """Counts a value, with the trace that it stands for as its exemplar."""
        found = self._found.get(label)
        if found is None:
            found = self._new(label)
        bucket = bisect_left(self._bounds, value)
        found.counts[bucket] += 1
        found.sum += value
        if trace:
            found.exemplars[bucket] = Exemplar({"trace_id": trace}, value, time.time())

    def describe(self) -> Iterable[Metric]:
        """Of prometheus_client: the name alone."""
        yield HistogramMetricFamily(self._name, self._text, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        """Of prometheus_client."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labelnames)
        for label, found in list(self._found.items()):
            family.add_metric([label], list(self._cumulated(found)), found.sum)
        yield family

    def _new(self, label: str) -> _Buckets:
        if len(self._found) >= self._most:
            label = OTHER
        return self._found.setdefault(label, _Buckets(len(self._bounds) + 1))

    def _cumulated(self, found: _Buckets) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
        total, exemplars = 0, dict(found.exemplars)
        for number, (bound, count) in enumerate(zip((*self._bounds, float("inf")), found.counts[:], strict=True)):
            total += count
            name = "+Inf" if bound == float("inf") else str(bound)
            yield (name, total, exemplars[number]) if number in exemplars else (name, total)
