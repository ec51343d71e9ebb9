"""Which workers a request has been sent to, for proxies that ask again for each attempt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

ATTEMPT = "x-envoy-attempt-count"
REQUEST_ID = "x-request-id"
_NONE = frozenset[str]()


class Attempts:
    """Remembers the last `capacity` requests that were announced with a number of attempts.

    Prefix affinity is strongest where the request has just failed: asked again, the picker must look elsewhere.
    """

    def __init__(self, capacity: int = 10_000):
        self._capacity = capacity
        self._tried: OrderedDict[str, frozenset[str]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Attempts of {len(self._tried)} requests>"

    def tried(self, headers: Mapping[str, str]) -> frozenset[str]:
        """The endpoints to avoid: those of earlier attempts, if this is a later one."""
        if headers.get(ATTEMPT, "1") == "1":
            return _NONE
        return self._tried.get(headers.get(REQUEST_ID, ""), _NONE)

    def note(self, headers: Mapping[str, str], endpoint: str) -> None:
        """This attempt goes to this endpoint."""
        request_id = headers.get(REQUEST_ID)
        if request_id is None or ATTEMPT not in headers:
            return
        self._tried[request_id] = self.tried(headers) | {endpoint}
        if len(self._tried) > self._capacity:
            self._tried.popitem(last=False)
