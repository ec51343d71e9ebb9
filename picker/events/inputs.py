"""What decisions saw, as lines of JSON that a decision can be made again from. Each line holds what has changed.

A file begins with a `process` line and, for the first decision in it, everything there is; then each `inputs` line has
the slots of each array that differ from the line before. A `fleet` line comes wherever workers' records have changed.
Numbers are written so that they read back bit by bit; infinity is written as null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from picker.events.decided import Seen
from picker.events.record import VERSION, shown
from picker.events.shortened import is_served
from picker.fleet.facts import WorkerFacts, label_of
from picker.fleet.freeze import Frozen
from picker.fleet.masks import Ints
from picker.scheduling.profile import DEFAULT
from picker.scheduling.request import SchedulingRequest

Array = npt.NDArray[Any]
Changes = dict[str, tuple[list[int], list[Any]]]
Sparse = tuple[list[int], list[int]]


class Process(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="process"):
    """Who writes the file. `policy` holds the settings that bear on decisions."""

    v: int = VERSION
    process: str
    policy: dict[str, Any]


class Worker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's record, as far as decisions go (`picker.fleet.view.WorkerFacts`)."""

    worker: str
    epoch: int
    endpoint: str
    state: str
    models: tuple[str, ...]
    adapters: tuple[str, ...] = ()
    resident_adapters: tuple[str, ...] = ()
    gpu: str = ""
    publishes_kv: bool = True
    kv_capacity_tokens: int = 0
    context_limit_tokens: int = 0
    adapter_slots: int = 0
    labels: dict[str, str] = {}
    engine: str = ""
    version: str = ""
    tokenizer: str = ""


class Fleet(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="fleet"):
    """All workers, by slot."""

    workers: dict[int, Worker]


class Inputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="inputs"):
    """What a decision was about, what it saw, and what it was.

    shape: slots. changes: of the arrays of the fleet. hits: slots and blocks there. about: without its profile, which
    follows from the rest. winner: endpoints in order, none where it was refused for `reason`.
    """

    id: str
    shape: int
    now: float
    ties: int
    about: dict[str, Any]
    tenant: str = ""
    objective: str = ""
    hits: Sparse = ([], [])
    loaded: list[int] = []
    changes: Changes = {}
    observed_at: float = 0.0
    pickers: int = 0
    heard_at: float = 0.0
    breakers_open: tuple[int, ...] = ()
    cordons: tuple[str, ...] = ()
    sums: dict[int, tuple[float, ...] | None] = {}
    endpoints: tuple[str, ...] = ()
    reason: str = ""
    is_detour: bool = False


Line = Process | Fleet | Inputs


class Writer:
    """From what decisions saw to lines. `restart` makes the next one complete, for a new file or after a loss."""

    def __init__(self, process: str, policy: dict[str, Any]):
        self._header = Process(process=process, policy=policy)
        self.restart()

    def restart(self) -> None:
        """Nothing that was written before counts."""
        self._is_first = True
        self._roster: Mapping[int, WorkerFacts] | None = None
        self._arrays: Mapping[str, Array] = {}
        self._sums: Mapping[int, tuple[float, ...]] = {}

    def lines(self, seen: Seen, inputs: Inputs) -> Iterator[Line]:
        """The lines for one decision. `inputs` lacks what is taken from `seen`."""
        if self._is_first:
            self._is_first = False
            yield self._header
        if seen.roster is not self._roster:
            self._roster = seen.roster
            yield Fleet(workers={slot: _worker(facts) for slot, facts in seen.roster.items()})
        frozen = seen.frozen
        yield msgspec.structs.replace(
            inputs,
            shape=len(seen.hits),
            now=seen.now,
            hits=_sparse(seen.hits),
            loaded=np.flatnonzero(seen.loaded).tolist(),
            changes=dict(_changes(self._arrays, frozen.arrays)),
            observed_at=frozen.observed_at,
            pickers=frozen.pickers,
            heard_at=frozen.heard_at,
            breakers_open=frozen.breakers_open,
            cordons=frozen.cordons,
            sums=_changed_sums(self._sums, frozen.sums),
        )
        self._arrays, self._sums = frozen.arrays, frozen.sums


class Reader:
    """From lines back to what decisions saw. Lines of a file must be given in order."""

    def __init__(self) -> None:
        self._workers: Mapping[int, Worker] = {}
        self._arrays: dict[str, Array] = {}
        self._sums: dict[int, tuple[float, ...]] = {}

    def process(self, line: Process) -> None:
        """A new file, perhaps of another process."""
        self._arrays.clear()
        self._sums.clear()

    def fleet(self, line: Fleet) -> None:
        """The workers from now on."""
        self._workers = line.workers

    def seen(self, line: Inputs) -> Seen:
        """What this decision saw. Arrays are its own."""
        for key, (slots, values) in line.changes.items():
            name, _, kind = key.partition(":")
            self._arrays[name] = _patched(self._arrays.get(name), line.shape, kind, slots, values)
        for slot, sums in line.sums.items():
            if sums is None:
                self._sums.pop(slot, None)
            else:
                self._sums[slot] = sums
        hits, loaded = np.zeros(line.shape, np.int64), np.zeros(line.shape, bool)
        hits[line.hits[0]] = line.hits[1]
        loaded[line.loaded] = True
        frozen = Frozen(
            {name: array.copy() for name, array in self._arrays.items()},
            line.observed_at, line.pickers, line.heard_at, line.breakers_open, line.cordons, dict(self._sums),
        )  # fmt: skip
        return Seen(frozen, self._workers, hits, loaded, line.now)


def told(about: SchedulingRequest, roster: Mapping[int, WorkerFacts]) -> dict[str, Any]:
    """A request as it may be written: a model or a label's value that no worker has is a digest."""
    values = {label_of(facts, label) for facts in roster.values() for label in about.require}
    safe = msgspec.structs.replace(
        about,
        model=shown(about.model or "", is_served(about.model or "", roster)) or about.model,
        require={label: tuple(shown(v, v in values) for v in wanted) for label, wanted in about.require.items()},
        profile=DEFAULT,
    )
    fields: dict[str, Any] = msgspec.to_builtins(safe)
    del fields["profile"]
    return fields


def _worker(facts: WorkerFacts) -> Worker:
    return msgspec.convert({name: getattr(facts, name) for name in Worker.__struct_fields__}, Worker, strict=False)


def _sparse(array: Ints) -> Sparse:
    slots = np.flatnonzero(array)
    return slots.tolist(), array[slots].tolist()


def _changes(
    before: Mapping[str, Array], after: Mapping[str, Array]
) -> Iterator[tuple[str, tuple[list[int], list[Any]]]]:
    for name, array in after.items():
        old = before.get(name)
        slots = np.flatnonzero(array != old) if old is not None and len(old) == len(array) else np.arange(len(array))
        if len(slots):
            yield f"{name}:{array.dtype.char}", (slots.tolist(), _finite(array[slots].tolist()))


def _finite(values: list[Any]) -> list[Any]:
    return [None if value == np.inf else value for value in values]


def _patched(old: Array | None, shape: int, kind: str, slots: Sequence[int], values: Sequence[Any]) -> Array:
    array = old if old is not None and len(old) == shape else np.zeros(shape, kind)
    array[slots] = [np.inf if value is None else value for value in values]
    return array


def _changed_sums(
    before: Mapping[int, tuple[float, ...]], after: Mapping[int, tuple[float, ...]]
) -> dict[int, tuple[float, ...] | None]:
    gone = dict.fromkeys(before.keys() - after.keys())
    return {**{slot: sums for slot, sums in after.items() if before.get(slot) != sums}, **gone}
