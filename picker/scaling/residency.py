"""On how many workers a model or an adapter should be loaded, and on how many it is.

needed     workers for the requests of this name alone, by the formula of `picker.scaling.desired`; of an adapter no
               more than can load it
resident   workers, ready and fresh, that have it loaded
preload    needed - resident, at least 0: on so many more workers it should be loaded before the requests come
"""

from __future__ import annotations

from dataclasses import dataclass

from picker.fleet.view import View


@dataclass(frozen=True, slots=True)
class Residency:
    """Of one name, in workers."""

    needed: int
    resident: int

    @property
    def preload(self) -> int:
        """Workers on which it should be loaded besides."""
        return max(0, self.needed - self.resident)


def of_model(name: str, needed: int, view: View) -> Residency:
    """Any worker may come to serve a model: how many should is the number to ask for."""
    return Residency(needed, int((view.serving(name) & view.ready & view.fresh()).sum()))


def of_adapter(name: str, needed: int, view: View) -> Residency:
    """An adapter can be loaded where the worker's engine knows it."""
    able = view.serving(name) & view.ready & view.fresh()
    return Residency(min(needed, int(able.sum())), int((able & view.with_adapter(name)).sum()))
