"""What a client is told that is not admitted: why, by which status, and when to come back."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Cause(enum.StrEnum):
    """Why a request was turned away. The values are stable: clients and metrics see them."""

    ALL_FULL = "queue-full"
    CLASS_FULL = "class-queue-full"
    TENANT_FULL = "tenant-queue-full"
    TIMEOUT = "queue-timeout"
    NO_WORKER_CAME = "no-worker-came"
    TOO_LATE = "deadline-unreachable"
    COLD = "cold-session"
    QUOTA = "quota-exceeded"
    DISPLACED = "displaced"
    PREEMPTED = "preempted"
    SHUTTING_DOWN = "shutting-down"


STATUS: Mapping[Cause, int] = {
    **dict.fromkeys(Cause, 429),
    Cause.NO_WORKER_CAME: 503,
    Cause.SHUTTING_DOWN: 503,
}
"""429 where there is capacity and it is taken, 503 where there is none."""

MESSAGE: Mapping[Cause, str] = {
    Cause.ALL_FULL: "Too many requests are waiting for a worker. Please try again later.",
    Cause.CLASS_FULL: "Too many requests of this class are waiting for a worker. Please try again later.",
    Cause.TENANT_FULL: "Too many of your requests are waiting for a worker. Please try again later.",
    Cause.TIMEOUT: "No worker had room for this request in time. Please try again later.",
    Cause.NO_WORKER_CAME: "No worker became ready for this request in time. Please try again later.",
    Cause.TOO_LATE: "This request could not be answered within its objective. Please try again later.",
    Cause.COLD: "The caches are busy with other conversations. Please try again later.",
    Cause.QUOTA: "Your quota is used up for the moment. Please try again later.",
    Cause.DISPLACED: "A request of higher priority has taken this one's place. Please try again later.",
    Cause.PREEMPTED: "A request of higher priority needs the worker of this one. Please try again later.",
    Cause.SHUTTING_DOWN: "The endpoint picker is shutting down. Please try again.",
}


@dataclass(frozen=True, slots=True)
class Turned:
    """Turned away. `retry_after_s` is in whole seconds, 0 where nothing is known."""

    cause: Cause
    retry_after_s: int = 0
