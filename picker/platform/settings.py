"""How a picker and an orchestration platform exchange what they know."""

from __future__ import annotations

from typing import Annotated

import msgspec

REDIS = "redis"
Positive = Annotated[float, msgspec.Meta(gt=0)]


class PlatformSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Orders of a platform, and the state that it is told. docs/platform.md has both documents.

    orders: where orders are read: `redis` for the HASH `platform` of the pool, else a file; "" for nowhere.
    state: where the state is written: `redis` for the HASH `state` of the pool, else a file; "" for nowhere.
    read_every_s, write_every_s: so often.
    max_bytes: of orders; more are refused.
    """

    orders: str = ""
    state: str = ""
    read_every_s: Positive = 1.0
    write_every_s: Positive = 5.0
    max_bytes: Annotated[int, msgspec.Meta(gt=0)] = 1 << 20
