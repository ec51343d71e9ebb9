"""What operators need not set: the bounds and times of the feed."""

from __future__ import annotations

from dataclasses import dataclass, field

from picker.fleet.endpoints import Network
from picker.fleet.fence import FenceSettings


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """Times in seconds.

    `missing_grace_s`: a worker that the load HASH does not list any more is kept so long; an emptied Redis lists none
    until the agents have come back. `retire_after_s`: one whose beat stands still is retired after so long, and
    removed from Redis if its lease is over. `watched_step_s`: the most that one poll adds to time watched.

    `max_workers`: workers in the view. What else the load HASH lists takes no place there, and is looked up after
    waits that double from `first_lookup_retry_s` to `longest_lookup_retry_s`; of no more than `max_fields` fields is
    anything remembered. `registration_batch`: records looked up at once. A load HASH of more than twice the fields that
    there are workers, and `page_fields`, is read in pages of so many, beside the workers' own.

    `max_snapshot_blocks`: a larger snapshot (of 64 million tokens by default) is no worker's. `reload_workers`:
    restored with one reading of the stream. `slice_blocks`: the loop is let go after so many (1 to 4 ms).

    `networks`: in which workers' endpoints must lie, where the operator says so.
    """

    networks: tuple[Network, ...] = ()
    poll_s: float = 0.1
    missing_grace_s: float = 5.0
    retire_after_s: float = 30.0
    max_workers: int = 4096
    max_fields: int = 65_536
    page_fields: int = 512
    first_lookup_retry_s: float = 0.1
    longest_lookup_retry_s: float = 30.0
    max_snapshot_blocks: int = 1_000_000
    page_entries: int = 256
    slice_blocks: int = 1000
    reload_workers: int = 8
    registration_batch: int = 256
    watched_step_s: float = 1.0
    deadline_s: float = 1.0
    first_retry_s: float = 0.05
    longest_retry_s: float = 2.0
    fence: FenceSettings = field(default_factory=FenceSettings)
