"""Settings of admission: classes of requests, bounds of what waits, tenants, room, the gate for cold sessions."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of what waits at the same time; None is no bound.

    requests: so many.
    bytes: of their bodies.
    tokens: of their prompts.
    """

    requests: Positive | None = None
    bytes: Positive | None = None
    tokens: Positive | None = None


class ClassSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of requests, chosen by the objective header.

    name, objectives: values of that header that mean this class.
    priority: the class with the larger number goes first.
    share: of the tokens that are dispatched while requests of this class wait, so much is theirs at least, whatever
    waits above them.
    max_wait_s: a request that has waited so long is refused. Clients may ask for less (`x-request-timeout`).
    ttft_s, ttft_prefills: the first token is due after so many seconds, and so many times what the prompt's own prefill
    takes alone and uncached; a request that cannot have it in time is refused at once. None: only where a client asks
    for it (`x-slo-ttft-ms`), who may ask for less but not for more.
    wait_for_workers_s: how long requests wait while no worker is ready at all (a pool that scales from zero); 0 refuses
    them at once.
    fill: requests of this class enter only while the bounds of all that waits are used up to this share. Below 1 a
    class is turned away before those that have more.
    bounds: of this class.
    preempted_after_s: one of this class that is on its way is cut, before its response has begun, when one of a higher
    class has waited so long for room at its worker; its client is told to come back. None: never. It needs a proxy that
    tells of response headers (`response_header_mode: SEND`).
    """

    name: str
    priority: int = 0
    objectives: tuple[str, ...] = ()
    share: Share = 0.0
    max_wait_s: PositiveFloat = 30.0
    ttft_s: PositiveFloat | None = None
    ttft_prefills: NonNegative = 0.0
    wait_for_workers_s: NonNegative = 0.0
    fill: Share = 1.0
    bounds: Bounds = Bounds()
    preempted_after_s: NonNegative | None = None


class Room(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a worker has room for one more request.

    tokens: while no more uncached prompt tokens than this have been sent to it and not brought a first token. In
    simulation anything from 2,000 to 16,000 does as well.
    kv_used: and while running requests use no more than this share of its KV cache.
    tpot_s: and while the time between two tokens there is expected to be no more than this. None is no limit.
    kept: this share of all that is kept for tenants who have been served less than others, and for higher classes that
    also ask.
    """

    tokens: Positive = 8192
    kv_used: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95
    tpot_s: PositiveFloat | None = None
    kept: Share = 0.04


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions whose cache is lost are told to come back later, while caches thrash and requests wait.

    residence_s: caches thrash when what is computed would fill them within so many seconds; 0 turns the gate off.
    lost: and when of the tokens asked for at least this share was cached a while ago and is no more.
    cached: a request of which a smaller share is cached is refused then.
    retry_s: after so many seconds it may come back.
    """

    residence_s: NonNegative = 20.0
    lost: Share = 0.25
    cached: Share = 0.5
    retry_s: PositiveFloat = 10.0


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rate for each tenant and model.

    tenants: whom it is for, each by itself; none named: for each there is.
    models: by the first of the names that workers serve them under; none named: for each there is.
    requests_per_s: of requests. None is no limit.
    tokens_per_s: of tokens, of the prompt and of the answer as it is expected. None is no limit.
    burst_s: so many seconds of the rate may come at once.
    """

    tenants: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    requests_per_s: PositiveFloat | None = None
    tokens_per_s: PositiveFloat | None = None
    burst_s: PositiveFloat = 10.0


DEFAULT_CLASSES = (
    ClassSettings(name="interactive", priority=100),
    ClassSettings(name="default", share=0.1, fill=0.9),
    ClassSettings(name="batch", priority=-100, share=0.05, fill=0.5),
)


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of requests for which no worker has room.

    enabled: false places every request at once, whatever the load.
    classes: from which each request has one.
    default_class: of requests whose objective names none.
    tenants: their weights, by name. Where any are named, all other tenants together count as one, of weight 1.
    tenant_buckets: where none is named each counts for itself, spread over so many buckets by a hash.
    tenant_from: `header` believes the fairness header, which clients can send; `metadata` believes only what Envoy's
    own filters have put into the metadata namespace `picker`, key `tenant`.
    total: bounds of all that waits.
    tenant: bounds of each tenant's in one class.
    displace: where all places are taken, a request of a higher class takes that of one of a lower class.
    detour_s: a request whose best worker has no room goes to another that has, if that costs no more than so much more;
    0 lets it wait. Costs are the policy's, in seconds.
    scan: how many requests whose worker has no room may be passed over for one whose worker has; they are shared among
    the tenants that wait.
    room: when a worker has room.
    gate: for sessions whose cache is lost.
    quotas: rates for tenants and models, all of which must be kept. Where tenants are known by a header that clients
    can send, they hold nobody who does not want to be held.
    """

    enabled: bool = True
    classes: tuple[ClassSettings, ...] = DEFAULT_CLASSES
    default_class: str = "default"
    tenants: dict[str, PositiveFloat] = {}
    tenant_buckets: Positive = 1024
    tenant_from: str = "header"
    total: Bounds = Bounds(requests=5000, bytes=512 << 20, tokens=50_000_000)
    tenant: Bounds = Bounds()
    displace: bool = False
    detour_s: NonNegative = 1.0
    scan: Positive = 16
    room: Room = Room()
    gate: Gate = Gate()
    quotas: tuple[Quota, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        names = [each.name for each in self.classes]
        if len(set(names)) < len(names):
            raise ValueError("two classes have the same name")
        if self.default_class not in names:
            raise ValueError(f"default_class {self.default_class!r} is none of the classes {', '.join(names)}")
        if self.tenant_from not in ("header", "metadata"):
            raise ValueError(f"tenant_from {self.tenant_from!r} is neither header nor metadata")
        if sum(each.share for each in self.classes) > 1:
            raise ValueError("the shares of the classes add up to more than 1")
