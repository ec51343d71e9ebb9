"""What pickers tell one another, in one round trip: typed answers, no policy.

Each picker has a seat, a numbered key that expires: all seats are read with one command, a dead picker's is empty when
its lease is over, and there are no more pickers to read than there are seats. Placed prefixes go through a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from picker.redisview.connection import bounded
from picker.redisview.keys import Keys
from picker.redisview.reader import parse_id
from picker.redisview.records import Foreign, StreamId
from picker.redisview.share_records import Routed


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Bounds. `seats`: pickers that share; `lease_s`: how long a share counts without being renewed.

    `routed_entries`: about so many entries of placed prefixes are kept, at most 40 KB each, typically 1.
    `page_entries`: of them, read at once.
    """

    seats: int = 64
    lease_s: float = 2.0
    routed_entries: int = 4096
    page_entries: int = 32
    deadline_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What to tell. `share`: for this seat, or None to leave it as it is; `claims`: the seat is not ours yet."""

    seat: int | None = None
    share: bytes | None = None
    claims: bool = False
    routed: Sequence[bytes] = ()


class RoutedEntry(NamedTuple):
    """One entry of the stream of placed prefixes; `routed` is None where no picker wrote it."""

    id: StreamId
    routed: Routed | None


@dataclass(frozen=True, slots=True)
class Incoming:
    """What was told, by seat, as it was before our own share was written; and placed prefixes.

    `is_seated`: whether our share stands in our seat now. `refusal`: why Redis did not take what we wrote.
    """

    shares: Mapping[int, bytes]
    routed: Sequence[RoutedEntry]
    is_seated: bool
    refusal: ResponseError | None
    has_foreign_stream: bool


class Exchange:
    """The pickers of one pool. Raises `connection.FAILURES` where Redis does not answer."""

    def __init__(self, client: Redis, keys: Keys, settings: ExchangeSettings = ExchangeSettings()):
        self._client = client
        self._keys = keys
        self._settings = settings

    async def last_routed_id(self) -> StreamId:
        """The id of the newest entry of placed prefixes; (0, 0) if there is none."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.execute_command("XREVRANGE", self._keys.routed, "+", "-", "COUNT", 1)
        async with bounded(self._settings.deadline_s):
            [reply] = await pipeline.execute(raise_on_error=False)
        if _is_foreign(reply):
            return (0, 0)
        if isinstance(reply, Exception):
            raise reply
        return parse_id(reply[0][0]) if reply else (0, 0)

    async def exchange(self, outgoing: Outgoing, seats: Sequence[int], after: StreamId) -> Incoming:
        """Reads these seats and the prefixes placed after this id; then writes."""
        settings, pipeline = self._settings, self._client.pipeline(transaction=False)
        pipeline.execute_command("MGET", *(self._keys.share(seat) for seat in seats))
        start = f"{after[0]}-{after[1]}"
        pipeline.execute_command("XREAD", "COUNT", settings.page_entries, "STREAMS", self._keys.routed, start)
        if outgoing.seat is not None and outgoing.share is not None:
            condition, lease_ms = "NX" if outgoing.claims else "XX", round(settings.lease_s * 1000)
            key = self._keys.share(outgoing.seat)
            pipeline.execute_command("SET", key, outgoing.share, condition, "PX", lease_ms)
        for data in outgoing.routed:
            limit = settings.routed_entries
            pipeline.execute_command("XADD", self._keys.routed, "MAXLEN", "~", limit, "*", "r", data)
        async with bounded(settings.deadline_s):
            shares, stream, *written = await pipeline.execute(raise_on_error=False)
        return _incoming(seats, shares, stream, written, outgoing)


def _incoming(seats: Sequence[int], shares: Any, stream: Any, written: Sequence[Any], outgoing: Outgoing) -> Incoming:
    is_foreign = _is_foreign(stream)
    for reply in (shares, None if is_foreign else stream):
        if isinstance(reply, Exception):
            raise reply
    has_written = outgoing.share is not None and bool(written) and not isinstance(written[0], Exception)
    return Incoming(
        shares={seat: data for seat, data in zip(seats, shares, strict=True) if data is not None},
        routed=[] if is_foreign or not stream else [_entry(*entry) for entry in stream[0][1]],
        is_seated=has_written and written[0] is not None,
        refusal=next((reply for reply in written if isinstance(reply, ResponseError)), None),
        has_foreign_stream=is_foreign,
    )


def _is_foreign(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")


def _entry(entry_id: bytes, fields: dict[bytes, bytes] | None) -> RoutedEntry:
    try:
        routed = Routed.unpack((fields or {}).get(b"r", b""))
    except Foreign:
        routed = None
    return RoutedEntry(parse_id(entry_id), routed)
