"""The names of the keys. All keys of a pool share one hash tag: a pool is one slot of a Redis Cluster."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = 1
"""Version of every layout in this package; part of each key, so that two versions can share one Redis."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one pool.

    worker -> HASH, expires with its lease: what an agent knows of a worker (`record`: `records.WorkerRecord` as JSON;
        `epoch`: whose it is; `facts`: grows with each change of the record)
    load   -> HASH, worker id -> packed `records.LoadRecord`
    events -> STREAM, bounded: packed `records.KvEvent`, of all workers
    snapshot -> STRING, expires: packed `records.Snapshot`
    wanted -> STRING, expires: set by a picker that wants a new snapshot of this epoch
    share -> STRING, expires: packed `share_records.Share` of the picker in this seat
    routed -> STREAM, bounded: packed `share_records.Routed`, of all pickers
    decisions -> STREAM, bounded: decisions of all pickers as JSON (`picker.events.record`), where this is asked for
    cordons -> HASH, worker id -> why operators want nothing sent to it
    spending -> HASH, expires: what was spent of each quota, by all pickers
    platform -> HASH, section -> JSON: what an orchestration platform orders (`picker.platform.orders`)
    state -> HASH, expires, section -> JSON: what it is told (`picker.platform.state`)
    """

    pool: str

    def _key(self, *parts: str) -> str:
        return ":".join((f"picker{SCHEMA}:{{{self.pool}}}", *parts))

    @property
    def load(self) -> str:
        """HASH of load records."""
        return self._key("load")

    @property
    def events(self) -> str:
        """STREAM of KV events."""
        return self._key("kv", "0")

    @property
    def meta(self) -> str:
        """HASH with what must agree between agents and pickers: the hash function's name."""
        return self._key("meta")

    def tokenizer(self, digest: str) -> str:
        """STRING, expires: packed tokenizer files with this digest."""
        return self._key("tok", digest)

    def worker(self, worker_id: str) -> str:
        """HASH of one worker's facts."""
        return self._key("worker", worker_id)

    def snapshot(self, epoch: int) -> str:
        """STRING with all index blocks that a worker holds."""
        return self._key("snap", f"{epoch:016x}")

    def wanted(self, epoch: int) -> str:
        """STRING that asks an agent for a snapshot."""
        return self._key("want", f"{epoch:016x}")

    def share(self, seat: int) -> str:
        """STRING with what one picker has in flight. Seats are numbered from 0, so that all can be read at once."""
        return self._key("inflight", str(seat))

    @property
    def decisions(self) -> str:
        """STREAM of decisions."""
        return self._key("decisions")

    @property
    def cordons(self) -> str:
        """HASH of cordoned workers."""
        return self._key("cordons")

    @property
    def platform(self) -> str:
        """HASH of a platform's orders."""
        return self._key("platform")

    @property
    def state(self) -> str:
        """HASH of the state that a platform is told."""
        return self._key("state")

    @property
    def spending(self) -> str:
        """HASH of what was spent of quotas."""
        return self._key("spending")

    @property
    def routed(self) -> str:
        """STREAM of prefixes that pickers have placed."""
        return self._key("routed")
