"""Time, for all judgements of a feed and its view: it stands still while Redis cannot be read, or takes no writes.

That a beat did not move, or a worker was not listed, in an hour nobody looked or nobody could write, says nothing about
the worker.
"""

from __future__ import annotations


class Watch:
    """Time watched, in seconds: moves only with polls that succeed, by one step with each at most, if not held."""

    def __init__(self, now: float, longest_step_s: float):
        self.now = self._read_at = now
        self.is_held = False
        """Whether Redis takes no writes, of nobody."""
        self._longest_step_s = longest_step_s

    def __repr__(self) -> str:
        return f"<Watch {self.now:.3f}>"

    def advance(self, read_at: float) -> float:
        """A poll has succeeded at this moment of the process' monotonic clock. The new time watched."""
        if not self.is_held:
            self.now += min(read_at - self._read_at, self._longest_step_s)
        self._read_at = read_at
        return self.now
