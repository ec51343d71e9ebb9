"""The fences of a pool, found by worker and epoch, or by epoch alone, which is all that an event names.

An epoch is random, so honest workers never share one. A record can lie about it, though: a worker with another's epoch
gets a fence of its own beside the other's, and takes only its own away when it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from picker.fleet.fence import Fence


class Fences:
    """A set of fences, at most one for each (worker, epoch)."""

    def __init__(self, fences: Iterable[Fence] = ()):
        self._by_worker: dict[tuple[str, int], Fence] = {}
        self._by_epoch: dict[int, tuple[Fence, ...]] = {}
        for fence in fences:
            self.add(fence)

    def __repr__(self) -> str:
        return f"<Fences {len(self._by_worker)}, {sum(fence.is_dirty for fence in self)} dirty>"

    def __iter__(self) -> Iterator[Fence]:
        return iter(self._by_worker.values())

    def __contains__(self, fence: Fence) -> bool:
        return self._by_worker.get((fence.worker, fence.epoch)) is fence

    def get(self, worker: str, epoch: int) -> Fence | None:
        """The fence of this worker in this epoch."""
        return self._by_worker.get((worker, epoch))

    def of_epoch(self, epoch: int) -> tuple[Fence, ...]:
        """All fences of this epoch: none, one, or several where a record lies."""
        return self._by_epoch.get(epoch, ())

    def add(self, fence: Fence) -> None:
        """A fence, in place of the one of the same worker and epoch."""
        self.drop(fence.worker, fence.epoch)
        self._by_worker[fence.worker, fence.epoch] = fence
        self._by_epoch[fence.epoch] = (*self.of_epoch(fence.epoch), fence)

    def drop(self, worker: str, epoch: int) -> None:
        """Forgets the fence of this worker in this epoch, if there is one."""
        fence = self._by_worker.pop((worker, epoch), None)
        if fence is None:
            return
        rest = tuple(other for other in self._by_epoch[epoch] if other is not fence)
        if rest:
            self._by_epoch[epoch] = rest
        else:
            del self._by_epoch[epoch]
