"""Counters and histograms for what happens with every request: plain numbers in dicts, made into metrics at a scrape.

prometheus_client's own take a lock for each step, five times what this takes; here only the event loop counts, and a
scrape copies before it reads.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import numpy as np
from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from picker.telemetry.labels import OTHER

Values = tuple[str, ...]

Counts = Mapping[Values, float]
"""Label values -> count."""


class Counted(Collector):
    """Counts by label values that somebody else keeps, which `read` gives at each scrape, in its thread."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str], read: Callable[[], Counts]
    ):
        self._name = name
        self._text = text
        self._labelnames = tuple(labels)
        self._read = read
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Of prometheus_client: the name alone."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        """Of prometheus_client."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labelnames)
        for values, count in self._read().items():
            family.add_metric(values, count)
        yield family


class CounterTally(Counted):
    """Counts by label values, of at most `most` combinations; what is beyond them counts as `other`."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str] = (), most: int = 1000):
        self._most = most
        # One without labels is there from the start.
        self._counts: dict[Values, float] = {} if labels else {(): 0.0}
        super().__init__(registry, name, text, labels, lambda: dict(self._counts))

    def __len__(self) -> int:
        return len(self._counts)

    def inc(self) -> None:
        """Counts one, where there are no labels."""
        self._counts[()] += 1.0

    def add_each(self, found: Iterable[Values]) -> None:
        """Counts many, cheaper than one by one."""
        for values, count in Counter(found).items():
            self.add(values, count)

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


class _Buckets:
    __slots__ = ("counts", "exemplars", "sum")

    def __init__(self, count: int):
        self.counts = [0] * count
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}


class HistogramTally(Collector):
    """Distributions by the value of one label, at most `most` of them. `bounds` are the buckets' upper ends.

    Where `label` is "" there is one distribution, without labels.
    """

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, label: str, bounds: Sequence[float], most: int = 100
    ):
        self._name = name
        self._text = text
        self._labelnames = (label,) if label else ()
        self._bounds = tuple(bounds)
        self._edges = np.array(bounds)
        self._most = most
        self._found: dict[str, _Buckets] = {}
        if not label:
            self._new("")
        registry.register(self)

    def observe(self, value: float) -> None:
        """Counts a value, where there is no label."""
        self.add("", value)

    def add(self, label: str, value: float) -> None:
        """Counts a value."""
        found = self._found.get(label) or self._new(label)
        found.counts[bisect_left(self._bounds, value)] += 1
        found.sum += value

    def exemplify(self, label: str, value: float, trace: str) -> None:
        """This trace is an example of the values like this one."""
        found = self._found.get(label) or self._new(label)
        found.exemplars[bisect_left(self._bounds, value)] = Exemplar({"trace_id": trace}, value, time.time())

    def add_each(self, label: str, values: Sequence[float]) -> None:
        """Counts many, cheaper than one by one."""
        if not values:
            return
        found = self._found.get(label) or self._new(label)
        filled = np.bincount(self._edges.searchsorted(values))
        for bucket in np.flatnonzero(filled).tolist():
            found.counts[bucket] += int(filled[bucket])
        found.sum += sum(values)

    def describe(self) -> Iterable[Metric]:
        """Of prometheus_client: the name alone."""
        yield HistogramMetricFamily(self._name, self._text, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        """Of prometheus_client."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labelnames)
        for label, found in list(self._found.items()):
            family.add_metric([label] if self._labelnames else [], list(self._cumulated(found)), found.sum)
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
