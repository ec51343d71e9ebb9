"""The whole configuration of `picker serve`, as typed structs. `picker.config_files.load` reads it from YAML."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import yaml

from picker.admission.settings import AdmissionSettings
from picker.debug.settings import Debug
from picker.events.settings import Events
from picker.fleet import reuse
from picker.fleet.breakers import FAILURES, MOST_PAUSE_S, PAUSE_S
from picker.fleet.endpoints import networks
from picker.kubernetes.settings import KubernetesPool
from picker.platform.settings import PlatformSettings
from picker.redisview.settings import RedisConfig
from picker.scaling.settings import Scaling
from picker.scheduling.decide import FALLBACKS
from picker.scheduling.disaggregation import Disaggregation
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import expected_delay
from picker.scheduling.profile import Profile
from picker.settings.values import without_passwords
from picker.telemetry.trace_settings import Traces
from picker.transport.limits import PeerLimits


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of "host:port", "[::1]:port" or ":port" (all interfaces). Raises ValueError with what is wanted."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port with a port from 1 to 65535, such as 127.0.0.1:9002")
    return host.strip("[]") or "0.0.0.0", int(port)


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process holds and waits for at most.

    body_timeout_s: how long a request's body may take to arrive; then the client gets 408.
    exchange_timeout_s: how long an exchange may take as a whole before its booking is given up.
    max_body_bytes: of one request; beyond it the client gets 413.
    max_held_bytes: of all requests together; beyond it clients get 429.
    keepalive_s: a proxy that is silent for so long is asked for a sign of life, and taken for gone after as long again.
    max_streams: concurrent ext_proc streams, one for each request in flight.
    tokenizer_threads, tokenize_budget_s: prompts are tokenised in so many threads, and one that takes longer is placed
    by what is known by then.
    max_prompt_bytes: of a prompt's JSON; beyond it the prompt is placed by load alone.
    max_prompt_chars: of a prompt's text; beyond it the text is not tokenised but matched as it is.
    max_segment_chars: of text in which no special token allows a cut; only so much of it is tokenised.
    max_offered_tokenizers: of models whose tokenizers come from a cache or from workers; each takes 50 to 300 MB.
    prompt_states_bytes, prompt_tokens_bytes: memory of prompts that were read: of their chains, and of their tokens.
    """

    body_timeout_s: float = 30.0
    exchange_timeout_s: float = 3600.0
    keepalive_s: float = 20.0
    max_body_bytes: int = 64 << 20
    max_held_bytes: int = 1 << 30
    max_streams: int = 40_000
    tokenizer_threads: int = 2
    tokenize_budget_s: float = 1.0
    max_prompt_bytes: int = 16 << 20
    max_prompt_chars: int = 4 << 20
    max_segment_chars: int = 256 << 10
    max_offered_tokenizers: int = 16
    prompt_states_bytes: int = 64 << 20
    prompt_tokens_bytes: int = 64 << 20


class Prediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the prefix hits that are predicted for a model's prompts count as wrong.

    Shares of prompt tokens are compared, predicted and as engines count them.

    window_s: over about so long.
    max_error: by which the two shares may differ,
    sustained_s: and for how long by more.
    least_tokens: that both sides must know of before anything is judged.
    """

    window_s: Annotated[float, msgspec.Meta(gt=0)] = reuse.WINDOW_S
    max_error: Annotated[float, msgspec.Meta(gt=0, le=1)] = reuse.MAX_ERROR
    sustained_s: Annotated[float, msgspec.Meta(ge=0)] = reuse.SUSTAINED_S
    least_tokens: Annotated[int, msgspec.Meta(ge=1)] = reuse.LEAST_TOKENS


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS on the gRPC port.

    cert, key: PEM files, read again when they change; without them a certificate is made at the start, which is what
    gateways expect that encrypt but do not verify.
    client_ca: PEM file; with it only clients with a certificate of that authority are served.
    """

    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together; set both or neither")
        if self.client_ca is not None and self.cert is None:
            raise ValueError("client_ca needs cert and key")


class Breaker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker that fails (5xx, or nothing at all) is left out for a while, unless it is the only one.

    failures: in a row that open its breaker.
    pause_s: until one request may try again; doubled with each further failure.
    most_pause_s: beyond which it is not doubled.
    """

    failures: Annotated[int, msgspec.Meta(gt=0)] = FAILURES
    pause_s: Annotated[float, msgspec.Meta(gt=0)] = PAUSE_S
    most_pause_s: Annotated[float, msgspec.Meta(gt=0)] = MOST_PAUSE_S


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `picker serve`.

    listen: host:port for Envoy (ext_proc, EDS, access log), gRPC health and reflection.
    reflection: whether `listen` tells generic clients (grpcurl) which services it has. The debug port always does.
    health: host:port for gRPC health alone, in plain text, where probes use a port of its own; none by default.
    tls: for `listen`; plain text by default.
    metrics: host:port for Prometheus.
    metrics_workers: workers that have series of their own.
    metrics_compatible: also expose what we know under the names of the reference picker (llm_d_epp_..., inference_...).
    redis, pool: where agents publish, and under which name. A URL, or one with passwords and certificates in files.
    kubernetes: the InferencePool that says which workers there are; none by default, then agents alone say it.
    platform: orders of an orchestration platform, and the state that it is told.
    worker_networks: where the endpoints of workers lie, such as 10.0.0.0/8; others get nothing, whatever Redis says.
    Any by default, but for addresses that no worker can have, as those of cloud metadata services.
    transport: what carries gRPC on `listen` and `health`: grpcio, or http2, our own. Envoy sees no difference.
    http2: what the http2 transport lets a peer do.
    policy: by name; `picker simulate policies` lists ours and those of installed packages.
    fallbacks: endpoints named after the first, for Envoy's retries. 0 for gateways that take only one (ORIGINAL_DST).
    rewrites: from a model's name in a request to the one that workers know, or to several with weights (a canary). Only
    the bytes of the name change in the body.
    profiles: how to place the requests of a model, a tenant, an objective or a size; the first that matches counts.
    requirement_headers: from a request header to the label that it is about. A worker must have one of the values in
    the header. Only headers that the gateway sets or strips: whoever sends one chooses among your workers.
    placement: for a model or an adapter, the names of the workers that its requests may go to; any by default.
    failure_domain: the label of a rack, a zone, a node; fallbacks are taken from another one first.
    breaker: when a worker that fails is left out, and for how long.
    disaggregation: where some workers prefill and others decode; which, and when it is worth it.
    scaling: how many workers to ask for, as metrics and for KEDA.
    admission: what becomes of requests while no worker has room.
    worker_model: assumed speed of a worker; its real one is learnt.
    tokenizers: for each model, the folder that holds its tokenizer.json and chat template, or its entry in a Hugging
    Face cache.
    tokenizer_cache: a Hugging Face cache (the folder `hub`), where other models are looked for by the name that their
    workers give them.
    worker_tokenizers: whether files that workers' agents offer are used for models that are found in neither. A model
    without a tokenizer is matched by the prompt's text, against what pickers have placed.
    chat_templates: for a model, a file with the template that its engines are started with instead of its own.
    prediction: when predicted prefix hits count as wrong; gauges, a log line and the health detail `prefix-prediction`
    tell.
    reveal_endpoint: tell clients in `x-picker-endpoint` who served them.
    reveal_decision: tell clients in `x-picker-decision` the terms of the cost and how much of their prompt was cached.
    For trusted clients only: whoever can ask whether a prompt is cached learns whether somebody has sent it.
    conformance: obey `test-epp-endpoint-selection` and tell `x-conformance-test-served-endpoint`, as the Gateway API
    Inference Extension's conformance tests want it. Never in production: it lets clients choose the endpoint.
    stale_after_s: a worker whose agent is silent for so long is not picked.
    drain_wait_s: after SIGTERM, how long to go on while health says NOT_SERVING, for proxies that check it and have no
    other picker to retry on.
    drain_s: after that, how long streams in flight may take to end.
    events: where decisions are recorded.
    debug: the port of the debug service, for operators.
    traces: OpenTelemetry; none by default. Needs the extra `otel`.
    log_level: what is logged to begin with.
    limits: what one process holds and waits for at most.
    log_format: console for people, json for machines.
    """

    listen: str = "127.0.0.1:9002"
    reflection: bool = True
    health: str | None = None
    tls: Tls | None = None
    metrics: str = "127.0.0.1:9090"
    metrics_workers: Annotated[int, msgspec.Meta(ge=0)] = 1000
    metrics_compatible: bool = False
    redis: str | RedisConfig = "redis://127.0.0.1:6379"
    pool: str = "default"
    kubernetes: KubernetesPool | None = None
    platform: PlatformSettings = PlatformSettings()
    worker_networks: tuple[str, ...] = ()
    transport: Literal["grpcio", "http2"] = "http2"
    http2: PeerLimits = PeerLimits()
    policy: str = expected_delay.NAME
    fallbacks: Annotated[int, msgspec.Meta(ge=0, le=15)] = FALLBACKS
    rewrites: dict[str, str | dict[str, Annotated[float, msgspec.Meta(gt=0)]]] = {}
    profiles: tuple[Profile, ...] = ()
    requirement_headers: dict[str, str] = {}
    placement: dict[str, tuple[str, ...]] = {}
    failure_domain: str = ""
    breaker: Breaker = Breaker()
    disaggregation: Disaggregation | None = None
    scaling: Scaling = Scaling()
    admission: AdmissionSettings = AdmissionSettings()
    worker_model: WorkerModel = WorkerModel()
    tokenizers: dict[str, str] = {}
    tokenizer_cache: str = ""
    worker_tokenizers: bool = True
    chat_templates: dict[str, str] = {}
    prediction: Prediction = Prediction()
    reveal_endpoint: bool = False
    reveal_decision: bool = False
    conformance: bool = False
    stale_after_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    drain_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    limits: Limits = Limits()
    events: Events = Events()
    debug: Debug = Debug()
    traces: Traces | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for name in ("listen", "metrics", "health"):
            try:
                host_and_port(getattr(self, name) or "127.0.0.1:1")
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        try:
            networks(self.worker_networks)
        except ValueError as error:
            raise ValueError(f"worker_networks: {error}") from None


def redacted(config: Config) -> str:
    """The configuration as YAML, for people to see: without the credentials in a URL, and with names of files only."""
    values = without_passwords(msgspec.to_builtins(config))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
