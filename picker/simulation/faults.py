"""Faults on demand: what a picker must notice, at the push of a button."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from picker.simulation.kv_publisher import KvPublisher
from picker.simulation.realtime import RealTimeEngine


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """POST /fault. One at a time; each replaces the one before, "none" ends it.

    slow         steps take `factor` times as long
    stall        health is 200 and requests are taken, but nothing moves (a hung GPU, a paused engine)
    dead         the process is gone at once, without a goodbye
    unavailable  503 to everything, health included
    overload     503 to generation, in the shape of a full queue; health is 200
    break        200, and then the connection ends in the middle of the answer
    idle         /metrics says that nothing runs and nothing waits, whatever does
    hoard        says what it caches and never what it drops, and drops everything whenever it can
    impostor     KV events come under `topic`, which is another worker's
    """

    kind: Literal["none", "slow", "stall", "dead", "unavailable", "overload", "break", "idle", "hoard", "impostor"]
    factor: float = 4.0
    topic: str = ""


class Faults:
    """The fault that is on."""

    def __init__(self, engine: RealTimeEngine, publisher: KvPublisher):
        self.current = Fault("none")
        self._engine = engine
        self._publisher = publisher
        self._own_topic = publisher.topic

    @property
    def unavailable(self) -> bool:
        """Whether to answer everything with 503."""
        return self.current.kind == "unavailable"

    @property
    def overloaded(self) -> bool:
        """Whether to refuse generation as if the queue were full."""
        return self.current.kind == "overload"

    @property
    def breaks(self) -> bool:
        """Whether to end answers in the middle."""
        return self.current.kind == "break"

    def apply(self, fault: Fault) -> None:
        """Switch to this one."""
        if fault.kind == "dead":
            os._exit(1)
        self.current = fault
        self._engine.slowdown = fault.factor if fault.kind == "slow" else 1.0
        self._engine.claims_idle = fault.kind == "idle"
        self._engine.hoards = fault.kind == "hoard"
        self._publisher.topic = fault.topic if fault.kind == "impostor" else self._own_topic
        if fault.kind == "stall":
            self._engine.moving.clear()
        else:
            self._engine.moving.set()
