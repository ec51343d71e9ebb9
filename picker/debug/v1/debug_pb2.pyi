from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchFleetRequest(_message.Message):
    __slots__ = ("every_s",)
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    every_s: float
    def __init__(self, every_s: _Optional[float] = ...) -> None: ...

class Fleet(_message.Message):
    __slots__ = ("pool", "process", "at", "workers", "verdicts", "degraded", "streams", "other_pickers", "queues")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    OTHER_PICKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    process: str
    at: float
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    degraded: _containers.RepeatedScalarFieldContainer[str]
    streams: int
    other_pickers: int
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    def __init__(self, pool: _Optional[str] = ..., process: _Optional[str] = ..., at: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., degraded: _Optional[_Iterable[str]] = ..., streams: _Optional[int] = ..., other_pickers: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("verdict", "reason", "count")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    reason: str
    count: int
    def __init__(self, verdict: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "requests", "oldest_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    requests: int
    oldest_s: float
    def __init__(self, name: _Optional[str] = ..., requests: _Optional[int] = ..., oldest_s: _Optional[float] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("worker", "endpoint", "state", "engine", "version", "gpu", "models", "adapters", "labels", "epoch", "kv_capacity_tokens", "context_limit_tokens", "publishes_kv", "beat_age_s", "is_fresh", "running", "waiting", "waiting_tokens", "kv_used", "in_flight", "in_flight_here", "prefill_owed_s", "utilisation", "slowness", "is_cordoned", "is_breaker_open", "is_index_trusted", "index_blocks", "predicted_hit_share", "engine_hit_share")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHES_KV_FIELD_NUMBER: _ClassVar[int]
    BEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    IS_FRESH_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_USED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_HERE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_OWED_S_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    SLOWNESS_FIELD_NUMBER: _ClassVar[int]
    IS_CORDONED_FIELD_NUMBER: _ClassVar[int]
    IS_BREAKER_OPEN_FIELD_NUMBER: _ClassVar[int]
    IS_INDEX_TRUSTED_FIELD_NUMBER: _ClassVar[int]
    INDEX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_HIT_SHARE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_HIT_SHARE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    endpoint: str
    state: str
    engine: str
    version: str
    gpu: str
    models: _containers.RepeatedScalarFieldContainer[str]
    adapters: int
    labels: _containers.ScalarMap[str, str]
    epoch: int
    kv_capacity_tokens: int
    context_limit_tokens: int
    publishes_kv: bool
    beat_age_s: float
    is_fresh: bool
    running: int
    waiting: int
    waiting_tokens: int
    kv_used: float
    in_flight: int
    in_flight_here: int
    prefill_owed_s: float
    utilisation: float
    slowness: float
    is_cordoned: bool
    is_breaker_open: bool
    is_index_trusted: bool
    index_blocks: int
    predicted_hit_share: float
    engine_hit_share: float
    def __init__(self, worker: _Optional[str] = ..., endpoint: _Optional[str] = ..., state: _Optional[str] = ..., engine: _Optional[str] = ..., version: _Optional[str] = ..., gpu: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., adapters: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., epoch: _Optional[int] = ..., kv_capacity_tokens: _Optional[int] = ..., context_limit_tokens: _Optional[int] = ..., publishes_kv: _Optional[bool] = ..., beat_age_s: _Optional[float] = ..., is_fresh: _Optional[bool] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., kv_used: _Optional[float] = ..., in_flight: _Optional[int] = ..., in_flight_here: _Optional[int] = ..., prefill_owed_s: _Optional[float] = ..., utilisation: _Optional[float] = ..., slowness: _Optional[float] = ..., is_cordoned: _Optional[bool] = ..., is_breaker_open: _Optional[bool] = ..., is_index_trusted: _Optional[bool] = ..., index_blocks: _Optional[int] = ..., predicted_hit_share: _Optional[float] = ..., engine_hit_share: _Optional[float] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("v", "id", "at", "verdict", "request_id", "trace_id", "process", "sequence", "ties", "reason", "status", "model", "adapter", "tenant", "objective", "dialect", "stream", "prompt_tokens", "expected_output_tokens", "rung", "policy", "profile", "endpoints", "hit_tokens", "best_hit_tokens", "predicted_prefill_s", "eligible", "candidates", "ruled_out", "stages", "outcome", "is_detour")
    V_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNG_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEST_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    RULED_OUT_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    IS_DETOUR_FIELD_NUMBER: _ClassVar[int]
    v: int
    id: str
    at: float
    verdict: str
    request_id: str
    trace_id: str
    process: str
    sequence: int
    ties: int
    reason: str
    status: int
    model: str
    adapter: str
    tenant: str
    objective: str
    dialect: str
    stream: bool
    prompt_tokens: int
    expected_output_tokens: int
    rung: str
    policy: str
    profile: str
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    hit_tokens: int
    best_hit_tokens: int
    predicted_prefill_s: float
    eligible: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    ruled_out: _containers.RepeatedCompositeFieldContainer[RuledOut]
    stages: Stages
    outcome: Outcome
    is_detour: bool
    def __init__(self, v: _Optional[int] = ..., id: _Optional[str] = ..., at: _Optional[float] = ..., verdict: _Optional[str] = ..., request_id: _Optional[str] = ..., trace_id: _Optional[str] = ..., process: _Optional[str] = ..., sequence: _Optional[int] = ..., ties: _Optional[int] = ..., reason: _Optional[str] = ..., status: _Optional[int] = ..., model: _Optional[str] = ..., adapter: _Optional[str] = ..., tenant: _Optional[str] = ..., objective: _Optional[str] = ..., dialect: _Optional[str] = ..., stream: _Optional[bool] = ..., prompt_tokens: _Optional[int] = ..., expected_output_tokens: _Optional[int] = ..., rung: _Optional[str] = ..., policy: _Optional[str] = ..., profile: _Optional[str] = ..., endpoints: _Optional[_Iterable[str]] = ..., hit_tokens: _Optional[int] = ..., best_hit_tokens: _Optional[int] = ..., predicted_prefill_s: _Optional[float] = ..., eligible: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., ruled_out: _Optional[_Iterable[_Union[RuledOut, _Mapping]]] = ..., stages: _Optional[_Union[Stages, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., is_detour: _Optional[bool] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("worker", "endpoint", "cost", "hit_tokens", "terms")
    class TermsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    endpoint: str
    cost: float
    hit_tokens: int
    terms: _containers.ScalarMap[str, float]
    def __init__(self, worker: _Optional[str] = ..., endpoint: _Optional[str] = ..., cost: _Optional[float] = ..., hit_tokens: _Optional[int] = ..., terms: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RuledOut(_message.Message):
    __slots__ = ("rule", "count", "workers")
    RULE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    rule: str
    count: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rule: _Optional[str] = ..., count: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ...) -> None: ...

class Stages(_message.Message):
    __slots__ = ("read_s", "prompt_s", "queue_s", "decide_s", "receive_s", "reply_s")
    READ_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    DECIDE_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_S_FIELD_NUMBER: _ClassVar[int]
    REPLY_S_FIELD_NUMBER: _ClassVar[int]
    read_s: float
    prompt_s: float
    queue_s: float
    decide_s: float
    receive_s: float
    reply_s: float
    def __init__(self, read_s: _Optional[float] = ..., prompt_s: _Optional[float] = ..., queue_s: _Optional[float] = ..., decide_s: _Optional[float] = ..., receive_s: _Optional[float] = ..., reply_s: _Optional[float] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("end", "status", "served", "attempts", "first_byte_s", "duration_s", "prompt_tokens", "cached_tokens", "output_tokens", "details")
    END_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BYTE_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    end: str
    status: int
    served: str
    attempts: int
    first_byte_s: float
    duration_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    details: str
    def __init__(self, end: _Optional[str] = ..., status: _Optional[int] = ..., served: _Optional[str] = ..., attempts: _Optional[int] = ..., first_byte_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., details: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("body", "path", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BODY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    body: str
    path: str
    headers: _containers.ScalarMap[str, str]
    def __init__(self, body: _Optional[str] = ..., path: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("request", "policy", "sequence", "ties", "avoid", "subset")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    AVOID_FIELD_NUMBER: _ClassVar[int]
    SUBSET_FIELD_NUMBER: _ClassVar[int]
    request: Request
    policy: str
    sequence: int
    ties: int
    avoid: _containers.RepeatedScalarFieldContainer[str]
    subset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request: _Optional[_Union[Request, _Mapping]] = ..., policy: _Optional[str] = ..., sequence: _Optional[int] = ..., ties: _Optional[int] = ..., avoid: _Optional[_Iterable[str]] = ..., subset: _Optional[_Iterable[str]] = ...) -> None: ...

class TailRequest(_message.Message):
    __slots__ = ("verdict", "reason", "model", "tenant", "worker", "end", "last", "past_only")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PAST_ONLY_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    reason: str
    model: str
    tenant: str
    worker: str
    end: str
    last: int
    past_only: bool
    def __init__(self, verdict: _Optional[str] = ..., reason: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker: _Optional[str] = ..., end: _Optional[str] = ..., last: _Optional[int] = ..., past_only: _Optional[bool] = ...) -> None: ...

class Prefix(_message.Message):
    __slots__ = ("model", "prompt_tokens", "rung", "blocks", "block_tokens", "holdings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNG_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt_tokens: int
    rung: str
    blocks: int
    block_tokens: int
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    def __init__(self, model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., rung: _Optional[str] = ..., blocks: _Optional[int] = ..., block_tokens: _Optional[int] = ..., holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("worker", "endpoint", "tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    endpoint: str
    tokens: int
    def __init__(self, worker: _Optional[str] = ..., endpoint: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Config(_message.Message):
    __slots__ = ("yaml",)
    YAML_FIELD_NUMBER: _ClassVar[int]
    yaml: str
    def __init__(self, yaml: _Optional[str] = ...) -> None: ...

class CordonRequest(_message.Message):
    __slots__ = ("worker", "note")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    note: str
    def __init__(self, worker: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class CordonResponse(_message.Message):
    __slots__ = ("cordoned", "is_shared")
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    IS_SHARED_FIELD_NUMBER: _ClassVar[int]
    cordoned: _containers.RepeatedScalarFieldContainer[str]
    is_shared: bool
    def __init__(self, cordoned: _Optional[_Iterable[str]] = ..., is_shared: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("worker", "note")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    note: str
    def __init__(self, worker: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class DrainProgress(_message.Message):
    __slots__ = ("worker", "in_flight", "running", "is_done")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    in_flight: int
    running: int
    is_done: bool
    def __init__(self, worker: _Optional[str] = ..., in_flight: _Optional[int] = ..., running: _Optional[int] = ..., is_done: _Optional[bool] = ...) -> None: ...

class LogLevel(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: str
    def __init__(self, level: _Optional[str] = ...) -> None: ...
