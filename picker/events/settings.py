"""Settings of the record of decisions."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]


class Events(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where decisions are recorded, and how many are kept.

    ring: decisions kept in memory, for `picker explain` and `picker tail`; 0 keeps none.
    ring_bytes: memory of those of which all is kept; of older ones the chosen workers are, and nothing of the others.
    file: JSON lines are written to this file; "-" is standard output.
    file_bytes, files: a file that is so large is set aside as FILE.1 (FILE.1 as FILE.2, ...); so many are kept.
    stream_length: also written to the Redis stream `picker1:{pool}:decisions`, which keeps about so many; 0 is none.
    sample: share of routed requests that are written, 0 to 1. Refused and failed ones always are.
    replayable: also write what each decision saw of the fleet, for `picker replay`; never sampled.
    queue: decisions that may wait to be written; beyond it they are dropped and counted.
    tenants: names of tenants and objectives to show as they are. Others show as a digest, because people send keys as
    tenants; those that profiles name are known anyway. "*" shows all.
    """

    ring: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    ring_bytes: Positive = 64 << 20
    file: str | None = None
    file_bytes: Positive = 256 << 20
    files: Positive = 5
    stream_length: Annotated[int, msgspec.Meta(ge=0)] = 0
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    replayable: bool = False
    queue: Positive = 10_000
    tenants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.replayable and not self.file:
            raise ValueError("replayable needs a file")
        if not self.ring and (self.file or self.stream_length):
            raise ValueError("ring must not be 0 where decisions are written to a file or a stream")
