"""The view: what this picker knows of a pool's workers, as arrays over slots.

A slot is a small integer that stands for one worker in one epoch, in this process only. A worker that restarts gets a
new epoch, hence a new slot, and the old one is out of the picks at once; what it held is forgotten little by little
(`sweep`), and only then is the slot used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from picker.fleet.adapters import SLOTS as ADAPTER_SLOTS
from picker.fleet.adapters import LoadedAdapters
from picker.fleet.breakers import Breakers
from picker.fleet.endpoints import host_of
from picker.fleet.facts import UNBOUNDED, WorkerFacts, WorkerLoad, label_of, most_tokens, serves
from picker.fleet.fit import Fits
from picker.fleet.index import PrefixIndex, depths
from picker.fleet.inflight import Booking, InFlight
from picker.fleet.lengths import OutputLengths
from picker.fleet.masks import Bools, Ints, Masks, Predicate, slots_in
from picker.fleet.placed import PlacedBlocks
from picker.fleet.reuse import WINDOW_S, Reuse, Shares
from picker.fleet.routed import RoutedLog
from picker.fleet.turnover import Turnover

STALE_AFTER_S = 5.0
CAPACITY = 64
"""Slots to begin with; there is no limit."""
_SWEEP_BLOCKS = 5000


class View:
    """Workers, loads, cached prefixes and bookings of one pool.

    Arrays have the shape (capacity,), where capacity is the number of slots there is room for; a slot without a worker
    is one where `known` is False. `stale_after_s`: a worker whose beat stands still for so long is not picked,
    if there are others.
    `approximate_blocks`: bound of the index of prompts that no event will announce, in index blocks, for a slot whose
    worker does not say how much it can cache; `most_approximate_blocks`: for any slot.
    `reuse_window_s`: over which predicted hits are compared with those that engines count.
    """

    def __init__(
        self,
        stale_after_s: float = STALE_AFTER_S,
        approximate_blocks: int = 8192,
        most_approximate_blocks: int = 65_536,
        capacity: int = CAPACITY,
        reuse_window_s: float = WINDOW_S,
        failure_domain: str = "",
        breakers: Breakers | None = None,
    ):
        self.index = PrefixIndex()
        self.speculative = PlacedBlocks(ttl_s=5.0, blocks_per_slot=4096)
        self.approximate = PlacedBlocks(ttl_s=1800.0, blocks_per_slot=approximate_blocks)
        self.unheard = PlacedBlocks(ttl_s=1800.0, blocks_per_slot=approximate_blocks)
        """What workers that announce their blocks got while they could not be heard."""
        self._fits = Fits(approximate_blocks, most_approximate_blocks)
        self.adapters = LoadedAdapters()
        self.inflight = InFlight(capacity)
        self.breakers = breakers or Breakers(capacity)
        self.lengths = OutputLengths()
        self.reuse = Reuse(reuse_window_s)
        self.turnover = Turnover()
        self.routed = RoutedLog()
        """What other pickers are to be told that we have placed."""
        self.epochs = np.zeros(capacity, np.uint64)
        self.known = np.zeros(capacity, bool)
        self.ready = np.zeros(capacity, bool)
        self.running = np.zeros(capacity, np.int64)
        self.waiting = np.zeros(capacity, np.int64)
        self.waiting_tokens = np.zeros(capacity, np.int64)
        self.kv_used = np.zeros(capacity)
        self._context_then = np.zeros(capacity, np.int64)
        """Tokens of the prompts in the books when a slot's load was read."""
        self.most_tokens = np.zeros(capacity, np.int64)
        """Prompt and output together, by context limit and KV capacity."""
        self.domains = np.zeros(capacity, np.int64)
        """Numbers that stand for the values of the label `failure_domain`; 0 for workers without it."""
        self.cordons: frozenset[str] = frozenset()
        """Names of workers that an operator wants nothing sent to."""
        self.cordoned = np.zeros(capacity, bool)
        """The slots of those."""
        self.members: frozenset[str] | None = None
        """The endpoints that the pool has, where anybody but the agents says so."""
        self.outside = np.zeros(capacity, bool)
        """The slots of workers at other endpoints."""
        self.unattended = np.zeros(capacity, bool)
        """The slots of workers for which no agent speaks: nothing is heard of them, and they do not become stale."""
        self.is_live = True
        """Whether loads and events arrive; whoever feeds the view says so."""
        self.version = 0
        """Grows whenever a worker comes, goes or changes its facts."""
        self._failure_domain = failure_domain
        self._domain_numbers: dict[str, int] = {}
        self._stale_after_s = stale_after_s
        self._beat = np.zeros(capacity, np.int64)
        self._beat_at = np.zeros(capacity)
        self._observed_at = 0.0
        self._fresh: Bools | None = None
        self._all_fresh: bool | None = None
        self._least_tokens: int | None = None
        self._facts: dict[int, WorkerFacts] = {}
        self._counters: dict[int, _Counters] = {}
        self._slots: dict[str, int] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._retired: list[int] = []
        self._masks = Masks()
        self._roster: Mapping[int, WorkerFacts] | None = None

    def __repr__(self) -> str:
        return f"<View {len(self._facts)} workers, {int(self.ready.sum())} ready, {self.index!r}, {self.inflight!r}>"

    # Workers come and go.

    def admit(self, facts: WorkerFacts, now: float, is_attended: bool = True) -> int:
        """A worker in a new epoch. Its slot; an older epoch's is retired. `is_attended`: an agent speaks for it."""
        old = self._slots.get(facts.worker)
        if old is not None:
            self.retire(old)
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.inflight.reset(slot)
        self.breakers.reset(slot)
        self._slots[facts.worker] = slot
        self._set_known(slot, True)
        self.epochs[slot] = facts.epoch
        self.unattended[slot] = not is_attended
        self._beat[slot] = -1
        self._beat_at[slot] = now
        for array in (self.running, self.waiting, self.waiting_tokens, self.kv_used, self._context_then):
            array[slot] = 0
        self.update_facts(slot, facts)
        return slot

    def update_facts(self, slot: int, facts: WorkerFacts) -> None:
        """A worker's record has changed."""
        self._facts[slot] = facts
        self.cordoned[slot] = self._is_cordoned(facts)
        self.outside[slot] = self.members is not None and facts.endpoint not in self.members
        self.ready[slot] = facts.state == "ready"
        self.approximate.resize(slot, self._fits.judge(slot, facts.kv_capacity_tokens, None, 0.0))
        self.most_tokens[slot] = most_tokens(facts)
        for adapter in facts.resident_adapters:
            self.use_adapter(slot, adapter)
        domain = facts.labels.get(self._failure_domain)
        self.domains[slot] = self._domain_numbers.setdefault(domain, len(self._domain_numbers) + 1) if domain else 0
        self._changed()

    def update_load(self, slot: int, load: WorkerLoad, now: float) -> None:
        """A worker's load as read at `now` (this process' monotonic clock, seconds)."""
        self._observed_at = now
        self._fresh = self._all_fresh = None
        if load.beat != self._beat[slot]:
            self._beat[slot] = load.beat
            self._beat_at[slot] = now
            self._learn(slot, load, now)
            self.inflight.reported(slot, load.running + load.waiting)
            # Where events show first tokens too, counts of them would show each twice.
            if not self._facts[slot].publishes_kv:
                self.inflight.counted(slot, load.first_tokens, now)
        self.running[slot] = load.running
        self.waiting[slot] = load.waiting
        self.waiting_tokens[slot] = load.waiting_tokens
        self.kv_used[slot] = load.kv_used
        self._context_then[slot] = self.inflight.context_of(slot)

    def retire(self, slot: int) -> None:
        """This worker, or this epoch of it, is gone. The slot is used again once `sweep` has emptied it."""
        facts = self._facts.pop(slot)
        del self._slots[facts.worker]
        self._set_known(slot, False)
        for flags in (self.ready, self.cordoned, self.outside, self.unattended):
            flags[slot] = False
        self.index.trust(slot, False)
        self.speculative.clear(slot)
        self.approximate.clear(slot)
        self.unheard.clear(slot)
        self.adapters.clear(slot)
        self.reuse.forget(slot)
        self.turnover.forget(slot)
        self._fits.forget(slot)
        self._counters.pop(slot, None)
        self._retired.append(slot)
        self._changed()

    def sweep(self, now: float) -> None:
        """Bounded clean-up; to be called a few times a second."""
        self.inflight.elapse(now)
        self.speculative.expire(now)
        self.approximate.expire(now)
        self.unheard.expire(now)
        if self._retired and self.index.forget(self._retired[0], _SWEEP_BLOCKS):
            slot = self._retired[0]
            # Bookings of the old worker may still be open; they must not be released into the new one's sums.
            if not self.inflight.requests[slot]:
                self._free.append(self._retired.pop(0))
            else:
                self._retired.append(self._retired.pop(0))

    # What is known.

    def slots(self) -> Iterable[int]:
        """The slots of known workers."""
        return self._facts.keys()

    def slots_at(self, endpoint: str) -> list[int]:
        """The slots of the workers that are reached there."""
        return [slot for slot, facts in self._facts.items() if facts.endpoint == endpoint]

    def slot_of(self, worker: str, epoch: int) -> int | None:
        """The slot of this worker if it is known in this epoch."""
        slot = self._slots.get(worker)
        return slot if slot is not None and self._facts[slot].epoch == epoch else None

    def slots_of(self, epochs: npt.NDArray[np.uint64]) -> Ints:
        """The slots of the workers in these epochs, -1 where there is none; same shape as `epochs`."""
        slots = np.flatnonzero(self.known)
        if not len(slots):
            return np.full(len(epochs), -1)
        order = slots[np.argsort(self.epochs[slots])]
        ranked = self.epochs[order]
        at = np.minimum(np.searchsorted(ranked, epochs), len(ranked) - 1)
        return np.where(ranked[at] == epochs, order[at], -1)

    def roster(self) -> Mapping[int, WorkerFacts]:
        """The records of all workers by slot, as they are now; the same object until one of them changes."""
        if self._roster is None:
            self._roster = dict(self._facts)
        return self._roster

    def beat_ages_s(self) -> npt.NDArray[np.float64]:
        """For how long each slot's beat had stood still when loads were last read, shape (capacity,)."""
        return np.maximum(0.0, self._observed_at - self._beat_at)

    def cordon(self, workers: Iterable[str]) -> None:
        """These workers, by name or endpoint, are not picked; all others are again."""
        self.cordons = frozenset(workers)
        for slot, facts in self._facts.items():
            self.cordoned[slot] = self._is_cordoned(facts)

    def confine(self, endpoints: frozenset[str]) -> None:
        """Only workers at these endpoints, in their canonical spelling, are picked."""
        self.members = endpoints
        for slot, facts in self._facts.items():
            self.outside[slot] = facts.endpoint not in endpoints

    def _is_cordoned(self, facts: WorkerFacts) -> bool:
        return facts.worker in self.cordons or facts.endpoint in self.cordons

    def facts(self, slot: int) -> WorkerFacts:
        """A known worker's record."""
        return self._facts[slot]

    def usable(self) -> Bools:
        """Slots that are ready, and that neither an operator nor the pool leaves out."""
        return self.ready & ~self.cordoned & ~self.outside

    def usable_endpoints(self) -> tuple[str, ...]:
        """The endpoints of workers that may be picked, if any is fresh the fresh ones; sorted, each once."""
        usable = self.usable()
        fresh = usable & self.fresh()
        slots = np.flatnonzero(fresh if fresh.any() else usable).tolist()
        return tuple(sorted({self._facts[slot].endpoint for slot in slots}))

    def fresh(self) -> Bools:
        """Slots whose beat has moved lately.

        "Lately" is counted up to the last time that Redis was read and not up to now: while Redis is away no beat can
        be seen to move, and that says nothing about the workers.
        """
        if self._fresh is None:
            is_recent = self._observed_at - self._beat_at <= self._stale_after_s
            self._fresh = self.known & (is_recent | self.unattended)
        return self._fresh

    def all_fresh(self) -> bool:
        """Whether every known worker is fresh, as they mostly are."""
        if self._all_fresh is None:
            self._all_fresh = bool((self.fresh() == self.known).all())
        return self._all_fresh

    def least_tokens(self) -> int:
        """So many of prompt and output together fit every known worker."""
        if self._least_tokens is None:
            self._least_tokens = int(self.most_tokens[self.known].min(initial=UNBOUNDED))
        return self._least_tokens

    def serving(self, model: str) -> Bools:
        """Slots whose worker serves this model or adapter, ready or not."""
        return self._mask("model", model, lambda facts: serves(facts, model))

    def model_names(self) -> set[str]:
        """The names under which workers cache prompts: each one's first."""
        return {facts.models[0] for facts in self._facts.values() if facts.models}

    def reused(self, now: float) -> dict[str, Shares]:
        """For each model what was predicted of its prompts and what came true, where both are known."""
        slots: dict[str, list[int]] = {}
        for slot, facts in self._facts.items():
            if facts.models:
                slots.setdefault(facts.models[0], []).append(slot)
        return {model: shares for model, each in slots.items() if (shares := self.reuse.shares(each, now))}

    def kv_expected(self, slot: int) -> float:
        """Share of a slot's KV cache in use: as its worker said last, and what was placed and has ended since."""
        capacity = self._facts[slot].kv_capacity_tokens
        since = self.inflight.context_of(slot) - self._context_then.item(slot)
        return self.kv_used.item(slot) + (since / capacity if capacity else 0.0)

    def residence_s(self, now: float) -> float:
        """After how long the caches of all workers would be full of what they compute; see `Turnover`."""
        capacities = {slot: facts.kv_capacity_tokens for slot, facts in self._facts.items() if facts.kv_capacity_tokens}
        return self.turnover.residence_s(capacities, now)

    def unnamed(self) -> Bools:
        """Slots whose worker has not said yet what it serves."""
        return self._mask("unnamed", None, lambda facts: not facts.models)

    def within(self, subset: frozenset[str]) -> Bools:
        """Slots whose endpoint, or whose address at any port, is in this set of canonical spellings."""
        return self._mask("subset", subset, lambda facts: facts.endpoint in subset or host_of(facts.endpoint) in subset)

    def labelled(self, label: str, values: frozenset[str]) -> Bools:
        """Slots whose worker has one of these values of a label, its own or a fact that counts as one (`label_of`)."""
        return self._mask(f"label {label}", values, lambda facts: label_of(facts, label) in values)

    def with_adapter(self, adapter: str) -> Bools:
        """Slots on which this adapter was used so lately that it is still loaded."""
        mask = np.zeros(len(self.known), bool)
        mask[slots_in(self.adapters.owners(adapter), len(mask))] = True
        return mask

    def base_and_adapter(self, model: str) -> tuple[str, str]:
        """The names under which a worker caches prompts for what a client calls `model`: its model, and adapter or "".

        An engine with several served names caches under one, so aliases share prefixes; we use its first.
        """
        serving = self.serving(model)
        slot = int(serving.argmax())
        facts = self._facts[slot] if serving[slot] else None
        # One for which nobody speaks does not say its name for the model; others may.
        if facts is not None and not facts.models:
            facts = next((each for each in self._facts.values() if each.models and serves(each, model)), None)
        if facts is None:
            return model, ""
        return facts.models[0], (model if model in facts.adapters else "")

    def hit_blocks(self, chain: Sequence[int]) -> Ints:
        """How many leading blocks of this chain each slot holds: shape (capacity,)."""
        hits = np.zeros(len(self.known), np.int64)
        for depth, mask in depths(chain, self._owners):
            # Mostly one worker holds the most of it, or a few.
            hits[mask.bit_length() - 1 if mask.bit_count() == 1 else slots_in(mask, len(hits))] = depth
        return hits

    # What is placed.

    def place(self, slot: int, chain: Sequence[int], exact: bool, work_s: float, tokens: int, now: float) -> Booking:
        """Books a request on a slot. `exact`: its chain is of token blocks, which events will announce.

        While events do not arrive, nothing will: then what was placed is remembered as if the worker announced nothing.
        """
        is_heard = self.is_live and self.index.trusts(slot)
        awaited = exact and is_heard and self._facts[slot].publishes_kv
        if exact and not is_heard and self._facts[slot].publishes_kv:
            self.unheard.place(slot, chain, now)
        else:
            self.expect(slot, chain, awaited, now)
        self.routed.add(self._facts[slot].epoch, awaited, chain)
        if not awaited or not chain:
            return self.inflight.book_unseen(slot, work_s, tokens, now)
        if self.index.owners(chain[-1]) >> slot & 1:
            return self.inflight.book_cached(slot, tokens, now)
        return self.inflight.book(slot, work_s, tokens, chain[-1], now)

    def withdraw(self, slot: int, chain: Sequence[int], held: int) -> None:
        """A request with this chain has failed there: of its blocks those count that were there before it."""
        for placed in (self.speculative, self.approximate, self.unheard):
            placed.withdraw(slot, chain, held)

    def expect(self, slot: int, chain: Sequence[int], awaited: bool, now: float) -> None:
        """A prompt goes to this slot, by this picker or another. `awaited`: the worker will announce its blocks."""
        if not awaited:
            self.approximate.place(slot, chain, now)
        # What is there already will not be announced again, but may go at any time.
        elif not chain or not self.index.owners(chain[-1]) >> slot & 1:
            self.speculative.place(slot, chain, now)

    def _owners(self, block: int) -> int:
        placed = self.speculative.owners(block) | self.approximate.owners(block) | self.unheard.owners(block)
        return self.index.owners(block) | placed

    def told(self, slot: int, prompt_tokens: int, cached_tokens: int | None, output_tokens: int, now: float) -> None:
        """A response has told what it took. An engine's own counters count it too, so this is for those without."""
        if not self.known[slot] or any(self._counters.get(slot, ())):
            return
        if cached_tokens is not None:
            self.reuse.counted(slot, prompt_tokens, cached_tokens, now)
        if models := self._facts[slot].models:
            self.lengths.note(models[0], output_tokens, 1)

    def _learn(self, slot: int, load: WorkerLoad, now: float) -> None:
        """From what an engine's counters have grown by."""
        counters = (load.looked_up_tokens, load.reused_tokens, load.generated_tokens, load.finished)
        before, self._counters[slot] = self._counters.get(slot), counters
        # An engine that counts anew is another one; its agent will say so.
        if before is None or counters == before or any(new < old for new, old in zip(counters, before, strict=True)):
            return
        looked_up, reused, generated, finished = (new - old for new, old in zip(counters, before, strict=True))
        self.reuse.counted(slot, looked_up, reused, now)
        self.turnover.computed(slot, looked_up - reused + generated, now)
        facts = self._facts[slot]
        if not facts.publishes_kv:
            shares = self.reuse.shares([slot], now)
            self.approximate.resize(slot, self._fits.judge(slot, facts.kv_capacity_tokens, shares, now))
        if facts.models:
            self.lengths.note(facts.models[0], generated, finished)

    def use_adapter(self, slot: int, adapter: str) -> None:
        """A request for this adapter goes to this slot."""
        self.adapters.use(slot, adapter, self._facts[slot].adapter_slots or ADAPTER_SLOTS)

    def _set_known(self, slot: int, is_known: bool) -> None:
        # Decisions that somebody may still ask about refer to the array as it was.
        self.known = self.known.copy()
        self.known[slot] = is_known

    def _changed(self) -> None:
        self.version += 1
        self._fresh = self._roster = self._all_fresh = self._least_tokens = None
        self._masks.clear()

    def _mask(self, kind: str, key: object, has: Predicate) -> Bools:
        return self._masks.where(self._facts, len(self.known), kind, key, has)

    def _grow(self) -> None:
        old = len(self.known)
        self._fresh = None
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                setattr(self, name, np.concatenate([array, np.zeros(old, array.dtype)]))
        self.inflight.grow(2 * old)
        self.breakers.grow(2 * old)
        self._free = list(range(2 * old - 1, old - 1, -1))
        self._masks.clear()


_Counters = tuple[int, int, int, int]
"""Tokens looked up, reused, generated; requests finished."""
