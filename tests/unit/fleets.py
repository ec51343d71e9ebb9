"""Small fleets for the tests of the core."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from picker.fleet.view import View


@dataclass(frozen=True)
class Worker:
    """What the view reads of a worker's record."""

    worker: str
    epoch: int = 1
    endpoint: str = "10.0.0.1:8000"
    state: str = "ready"
    models: Sequence[str] = ("llama",)
    adapters: Sequence[str] = ()
    publishes_kv: bool = True
    kv_capacity_tokens: int = 400_000
    context_limit_tokens: int = 131_072
    resident_adapters: Sequence[str] = ()
    adapter_slots: int = 0
    gpu: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    engine: str = "vllm"
    version: str = "0.32.0"
    tokenizer: str = ""


@dataclass(frozen=True)
class Load:
    """What the view reads of a worker's load."""

    beat: int
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    kv_used: float = 0.0
    looked_up_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    first_tokens: int = 0


def endpoint(number: int) -> str:
    return f"10.0.0.{number}:8000"


def fleet(count: int, capacity: int = 64, **facts: object) -> View:
    """A view of so many idle workers, all ready and trusted; worker i is at `endpoint(i)`."""
    view = View(capacity=capacity)
    for number in range(count):
        slot = view.admit(Worker(f"w{number}", **{"epoch": number + 1, "endpoint": endpoint(number), **facts}), now=0.0)  # type: ignore[arg-type]
        view.index.trust(slot, True)
    return view


def slot_at(view: View, endpoint: str) -> int:
    return next(slot for slot in view.slots() if view.facts(slot).endpoint == endpoint)
