"""The record of a decision, as it is written to files and streams and shown to people. One JSON object on a line.

Its form is versioned: fields are added, never given another meaning; a reader ignores those that it does not know.
Times are in seconds, tokens in tokens. What a client wrote stands in it only where it cannot be a secret: see `shown`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import xxhash

VERSION = 1
_IDENTIFIER = re.compile(r"[0-9A-Za-z._:-]{1,128}", re.ASCII)


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker that could have been chosen. `cost` is the sum of `terms`; the least one wins."""

    worker: str
    endpoint: str
    cost: float
    hit_tokens: int
    terms: dict[str, float]


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers a rule was the first to rule out; `workers` names some of them."""

    rule: str
    count: int
    workers: tuple[str, ...] = ()


class Stages(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where the time went.

    Receiving the body after the headers, reading it, reading the prompt (tokens, chain), waiting in a queue, deciding,
    and answering the proxy.
    """

    receive_s: float = 0.0
    read_s: float = 0.0
    prompt_s: float = 0.0
    queue_s: float = 0.0
    decide_s: float = 0.0
    reply_s: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of it, as far as is known.

    end: open, answered, failed (5xx, or no answer), cancelled (the client went away), refused, passed (left to Envoy).
    served: the endpoint that answered. first_byte_s, duration_s: since the decision. attempts: by Envoy's access log.
    prompt_tokens, cached_tokens, output_tokens: as the response told; None where it did not.
    """

    end: str = "open"
    status: int = 0
    served: str = ""
    attempts: int = 0
    first_byte_s: float | None = None
    duration_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    details: str = ""


OPEN = Outcome()
NO_STAGES = Stages()


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="decision"):
    """One decision.

    id: of this event. request_id: `x-request-id`, the same for all tries of a request.
    at: Unix time. ties: what equal costs were told apart by.
    verdict: route, refuse or pass; reason: why not route. rung: how the prompt's prefix was known.
    candidates: the cheapest ones, the winner first; eligible: how many there were.
    is_detour: the cheapest worker had no room, and this one costs little more.
    best_hit_tokens: the most that any eligible worker holds of the prompt.
    """

    v: int = VERSION
    id: str
    at: float
    verdict: str
    request_id: str = ""
    trace_id: str = ""
    process: str = ""
    sequence: int = 0
    ties: int = 0
    reason: str = ""
    status: int = 0
    model: str = ""
    adapter: str = ""
    tenant: str = ""
    objective: str = ""
    dialect: str = ""
    stream: bool = False
    prompt_tokens: int = 0
    expected_output_tokens: int = 0
    rung: str = ""
    policy: str = ""
    profile: str = ""
    endpoints: tuple[str, ...] = ()
    hit_tokens: int = 0
    best_hit_tokens: int = 0
    predicted_prefill_s: float = 0.0
    eligible: int = 0
    is_detour: bool = False
    candidates: tuple[Candidate, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    stages: Stages = NO_STAGES
    outcome: Outcome = OPEN

    @property
    def worker(self) -> str:
        """The worker that was chosen, "" if none was."""
        return self.candidates[0].worker if self.candidates else ""


def shown(name: str, is_known: bool) -> str:
    """A name that a client wrote, if it is one that we know; else a short digest, equal for equal names.

    People send keys, addresses and worse as tenants, and anything as a model's name.
    """
    return name if is_known or not name else digest(name)


def digest(name: str) -> str:
    """`~` and eight hexadecimal digits."""
    return f"~{xxhash.xxh3_64_intdigest(name.encode()) & 0xFFFFFFFF:08x}"


def identifier(name: str) -> str:
    """A request id as it is if it looks like one (Envoy's own are UUIDs), else its digest."""
    return name if not name or _IDENTIFIER.fullmatch(name) else digest(name)


_ENCODER = msgspec.json.Encoder()


def line(event: Any) -> bytes:
    """An event as a line of JSON, with the end of the line."""
    return _ENCODER.encode(event) + b"\n"
