"""Settings of traces."""

from __future__ import annotations

from typing import Annotated

import msgspec


class Traces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where spans go, and of which requests.

    endpoint: an OTLP receiver over gRPC; https:// for TLS.
    sample: share of the requests that bring no `traceparent`, 0 to 1; of the others those whose trace is sampled.
    service: what the spans say who we are.
    queue: spans that may wait to be sent; beyond it they are dropped.
    """

    endpoint: str = "http://127.0.0.1:4317"
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    service: str = "picker"
    queue: Annotated[int, msgspec.Meta(gt=0)] = 8192
