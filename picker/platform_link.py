"""Between `picker serve` and an orchestration platform: its orders are followed, and it is told how things are.

Orders that cannot be followed change nothing, and are told of in the log, in the metrics and in the state. So is a key
or a file that is not there: an emptied Redis is no order to lift all limits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis

from picker.config import Config
from picker.config_files import ConfigError, parse
from picker.platform.orders import SECTIONS, Orders, of_fields
from picker.platform.settings import REDIS
from picker.platform.state import Followed, State
from picker.redisview.connection import FAILURES
from picker.redisview.keys import Keys
from picker.redisview.platform import BadOrders, PlatformRecords

log = structlog.get_logger()

_KEPT_WRITES = 4
"""The state is forgotten when nobody has written it for so many times."""


def followed(config: Config, orders: Orders) -> Config:
    """A configuration under these orders."""
    admission: dict[str, Any] = {"quotas": orders.quotas, "tenants": orders.tenants}
    given = {name: value for name, value in admission.items() if value is not None}
    return msgspec.structs.replace(
        config,
        admission=msgspec.structs.replace(config.admission, **given),
        placement=config.placement if orders.placement is None else orders.placement,
    )


class PlatformLink:
    """One picker's. `follow` is handed orders that differ from those before; `state` says what is to be told."""

    def __init__(
        self,
        config: Config,
        redis: Redis,
        keys: Keys,
        follow: Callable[[Orders], None],
        state: Callable[[], State],
    ):
        self._settings = config.platform
        self._key = keys.platform
        self._records = PlatformRecords(redis, keys)
        self._follow = follow
        self._state = state
        self._orders = Orders()
        self._seen: object = None
        self._is_told_to = True
        self.error = ""
        """Why the last orders were refused; "" where they were not."""
        self.refused = 0
        """Orders that were refused."""

    def __repr__(self) -> str:
        return f"<PlatformLink orders from {self._settings.orders or 'nobody'}, revision {self._orders.revision!r}>"

    def followed(self) -> Followed:
        """Which orders are followed, for the state."""
        return Followed(revision=self._orders.revision, error=self.error)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.orders:
                tasks.create_task(self._keep_reading(), name="platform-orders")
            if self._settings.state:
                tasks.create_task(self._keep_telling(), name="platform-state")

    async def _keep_reading(self) -> None:
        while True:
            # What Redis' absence means is told of elsewhere.
            with contextlib.suppress(*FAILURES):
                await self.read()
            await asyncio.sleep(self._settings.read_every_s)

    async def read(self) -> None:
        """Once. Raises `connection.FAILURES` where Redis does not answer: then all stays as it was."""
        try:
            orders = await (self._from_redis() if self._settings.orders == REDIS else self._from_file())
        except BadOrders as error:
            # What comes next is to be looked at, even if it is what was there before.
            self._seen = None
            self._refuse(str(error))
            return
        except ConfigError as error:
            self._refuse(str(error))
            return
        if orders is not None:
            self.error = ""
            if orders != self._orders:
                log.info("platform_orders", revision=orders.revision, given=_given(orders))
                self._orders = orders
                self._follow(orders)

    async def _from_redis(self) -> Orders | None:
        """None where nothing has changed."""
        fields = await self._records.orders(SECTIONS, self._settings.max_bytes)
        if not fields:
            raise BadOrders(f"{self._key} is not there")
        if fields == self._seen:
            return None
        self._seen = fields
        return of_fields(fields, self._key)

    async def _from_file(self) -> Orders | None:
        path = Path(self._settings.orders)
        text = await asyncio.to_thread(_read, path, self._settings.max_bytes)
        if text == self._seen:
            return None
        self._seen = text
        # YAML of a megabyte takes a second.
        return await asyncio.to_thread(parse, text, Orders, path.name)

    def _refuse(self, error: str) -> None:
        if error != self.error:
            self.error = error
            self.refused += 1
            log.error("platform_orders_refused", error=error, consequence="the orders before are followed")

    async def _keep_telling(self) -> None:
        while True:
            try:
                await self.tell()
                self._note_told("")
            except FAILURES as error:
                self._note_told(type(error).__name__)
            await asyncio.sleep(self._settings.write_every_s)

    async def tell(self) -> None:
        """Once. Raises `connection.FAILURES`, OSError."""
        state = self._state()
        if self._settings.state == REDIS:
            sections = {name: msgspec.json.encode(getattr(state, name)) for name in State.__struct_fields__}
            await self._records.tell(sections, _KEPT_WRITES * self._settings.write_every_s)
        else:
            await asyncio.to_thread(_write, Path(self._settings.state), msgspec.json.encode(state))

    def _note_told(self, reason: str) -> None:
        if self._is_told_to == (not reason):
            return
        self._is_told_to = not reason
        if reason:
            log.warning("platform_state_untold", reason=reason, consequence="tried again")
        else:
            log.info("platform_state_told")


def _given(orders: Orders) -> Sequence[str]:
    return [name for name in SECTIONS if name != "revision" and getattr(orders, name) is not None]


def _read(path: Path, most_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise BadOrders(f"{path.name}: more than platform.max_bytes, which is {most_bytes}")
        return data.decode()
    except OSError as error:
        raise BadOrders(f"{path.name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadOrders(f"{path.name}: is not text in UTF-8") from None


def _write(path: Path, data: bytes) -> None:
    # Whoever reads it gets the one before or this one, and no half.
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.replace(path)
