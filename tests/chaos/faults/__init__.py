"""What goes wrong, by name: how it begins, and how it ends."""

from __future__ import annotations

from tests.chaos.faults import machine, networks, processes, stores, workers
from tests.chaos.faults.registry import FAULTS, Fault, Rig

__all__ = ["FAULTS", "Fault", "Rig", "machine", "networks", "processes", "stores", "workers"]
