"""W3C trace context: which trace a request is part of, by its header `traceparent`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class Span:
    """A decision's place in a trace, as W3C has it: numbers of the trace, of the span above it ("" is none), of our
    own, and of the one for the worker's part, which is what the worker learns.
    """

    trace: str
    parent: str
    own: str
    upstream: str

    @property
    def traceparent(self) -> str:
        """For the worker."""
        return f"00-{self.trace}-{self.upstream}-01"


def parsed(traceparent: str) -> tuple[str, str, bool] | None:
    """Trace, span above, and whether it is sampled, of a W3C `traceparent`; None where it is none."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return (match[1], match[2], bool(int(match[3], 16) & 1)) if match else None


def trace_id_of(traceparent: str) -> str:
    """Of a W3C `traceparent`, "" where it is none."""
    found = parsed(traceparent) if traceparent else None
    return found[0] if found else ""
