"""The whole configuration of `picker serve`, as typed structs. `picker.config_files.load` reads it from YAML."""

from __future__ import annotations

from typing import Literal

import msgspec

from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import expected_delay


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process holds and waits for at most.

    body_timeout_s: how long a request's body may take to arrive; then the client gets 408.
    max_body_bytes: of one request; beyond it the client gets 413.
    max_held_bytes: of all requests together; beyond it clients get 429.
    max_streams: concurrent ext_proc streams, one for each request in flight.
    tokenizer_threads, tokenize_budget_s: prompts are tokenised in so many threads, and one that takes longer is placed
    by load alone.
    """

    body_timeout_s: float = 30.0
    max_body_bytes: int = 64 << 20
    max_held_bytes: int = 1 << 30
    max_streams: int = 40_000
    tokenizer_threads: int = 2
    tokenize_budget_s: float = 1.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `picker serve`.

    listen: host:port for Envoy (ext_proc, EDS, access log), gRPC health and reflection.
    metrics: host:port for Prometheus.
    redis, pool: where agents publish, and under which name.
    policy: one of the names of `picker.scheduling.policies.POLICIES`.
    worker_model: assumed speed of a worker; its real one is learnt.
    tokenizers: for each model, the folder that holds its tokenizer.json and chat template. A model without one is
    matched by the prompt's text, against what this picker has placed itself.
    reveal_endpoint: tell clients in `x-picker-endpoint` who served them.
    stale_after_s: a worker whose agent is silent for so long is not picked.
    drain_s: after SIGTERM, how long streams in flight may take to end.
    """

    listen: str = "127.0.0.1:9002"
    metrics: str = "127.0.0.1:9090"
    redis: str = "redis://127.0.0.1:6379"
    pool: str = "default"
    policy: str = expected_delay.NAME
    worker_model: WorkerModel = WorkerModel()
    tokenizers: dict[str, str] = {}
    reveal_endpoint: bool = False
    stale_after_s: float = 5.0
    drain_s: float = 60.0
    limits: Limits = Limits()
    log_format: Literal["console", "json"] = "console"
