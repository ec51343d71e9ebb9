"""`docs/policies.md`, from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.policies.cases import CASES, DEFAULT, HEADLINE, LEVELS, LONG_S, SCALES, SENSITIVE, Case
from benchmarks.policies.results import Result
from picker.scheduling.policies import POLICIES
from picker.simulation.discrete.capacity import Mean
from picker.simulation.discrete.slo import parse

NOISE = 0.05
"""Less than this part apart is not told apart: steps of amounts are 3 to 6 per cent."""

LEAST_BASE = 5
"""Users below which a ratio to them says nothing."""

_HEAD = """# What each policy holds

Written by `make reproduce`; do not edit. Everything here is **simulated**: no figure says what your GPUs will do, only
how policies rank under one model of a worker (`picker/simulation/engine.py`: continuous batching, prefix cache, chunked
prefill; constants in `picker/simulation/profiles.py`, not fitted to measurements). The decision is the production one:
`picker.scheduling.decide` over a view whose KV events come 100 ms late and whose loads are published once a second (ten
times a second for llm-d and preble, which go by them). One picker; zero time for network and tokenising.

An amount *holds* at 99 % if so many requests were within the objective: users of a closed loop, who wait for an answer
before they ask again, or the speed at which a trace is replayed. **A ratio of amounts is a fact about an objective, not
about throughput**, so output tokens a second stand beside each. The objective `ttft=2s+1.5x` allows 2 s and 1.5 times
what the prompt takes alone and uncached. Users come during the first quarter of a run, to empty caches: what a policy
does not recover from counts as not held. Peers are models of other routers' formulas, read from their sources (each
one's docstring says from where), with our worker's announcements instead of their own guesses; `llm-d-tuned` and
`dynamo-8` are peers with weights that we tuned, in their favour. llm-d's default goes by queue lengths as vLLM counts
them after each step, so that what arrives during a long prefill is not in them.
"""


def page(results: Sequence[Result]) -> str:
    """The whole text."""
    parts = [_HEAD, *_scales(results), *_summary(results), *_headline(results)]
    for case in CASES:
        parts += _table(case, results)
    return "\n".join([*parts, *_beyond(), *_policies()]).rstrip() + "\n"


def _scales(results: Sequence[Result]) -> Iterator[str]:
    yield "## What was run\n"
    yield "| scale | cases | policies | runs | seeds | steps of amounts | requests of a trace | seconds of users |"
    yield "|---" * 8 + "|"
    for scale in SCALES.values():
        done = [result for result in results if result.scale == scale.name]
        if done:
            cases, policies = ({getattr(each, name) for each in done} for name in ("case", "policy"))
            yield (
                f"| {scale.name} | {len(cases)} of {len(CASES)} | {len(policies)} of {len(POLICIES)} "
                f"| {sum(each.runs for each in done):,} | {scale.seeds} | {scale.step:.0%} "
                f"| {f'{scale.requests:,}' if scale.requests else 'all'} "
                f"| {scale.seconds:g} (assistants, rag {LONG_S:g}) |"
            )
    yield "\nA tenth of a trace and two fifths of the users' time warm up. Three seeds and every policy:"
    yield "`make reproduce`; of whole traces: `make reproduce ARGS='--scale full'`, a day or two of two cores."
    yield "The default's constants were chosen on the first halves of the traces, and on users with other seeds.\n"


def _summary(results: Sequence[Result]) -> Iterator[str]:
    yield "## Where the default stands at 99 %\n"
    yield "| case | default | best other | ratio | |\n|---|---|---|---|---|"
    for case in CASES:
        own = _find(results, case.name, DEFAULT)
        others = [found for name in POLICIES if name != DEFAULT and (found := _find(results, case.name, name))]
        if own is None or not others:
            continue
        best = max(others, key=lambda result: result.amount(0.99).value)
        yield f"| {case.name} | {own.amount(0.99)} | {best.policy} {best.amount(0.99)} | {_versus(own, best)} |"
    yield "\nLess than 5 % apart counts as even. At scale `quick` eleven requests of a trace decide at 99 %; another"
    yield "seed may turn 10 %: read these ratios with the tables below, where 90 and 95 % stand beside them.\n"


def _versus(own: Result, best: Result) -> str:
    ours, theirs = own.amount(0.99).value, best.amount(0.99).value
    if not theirs:
        return "- | best" if ours else "- | nobody holds anything"
    verdict = "best" if ours > theirs * (1 + NOISE) else "even" if ours >= theirs * (1 - NOISE) else "**behind**"
    return f"{ours / theirs:.2f} | {verdict}"


def _headline(results: Sequence[Result]) -> Iterator[str]:
    yield "## Sixteen GPUs: how many users\n"
    yield (
        "Eight workers of two GPUs each, 64 kinds of assistants whose prompts have 12k tokens. The ratio follows the\n"
        "objective: round-robin's users are few where a cold prefill (0.8 s and more) nearly fills it.\n"
        "Where it holds fewer than five, no ratio is given.\n"
    )
    yield f"| objective | at | {' | '.join(f'{name} | tokens/s' for name in SENSITIVE)} | users ratio | output ratio |"
    yield "|---" * (4 + 2 * len(SENSITIVE)) + "|"
    [case] = [case for case in CASES if case.name == HEADLINE]
    for slo in sorted({case.slo, *case.also}, key=_strictness):
        row = [_find(results, case.name, policy, "" if slo == case.slo else slo) for policy in SENSITIVE]
        for level in LEVELS if row[-1] else ():
            yield f"| {slo} | {level:.0%} | {' | '.join(_cell(one, level) for one in row)} | {_both(row, level)} |"
    yield ""


def _strictness(text: str) -> tuple[float, float]:
    slo = parse(text)
    return slo.ttft_s, slo.tpot_s


def _both(row: Sequence[Result | None], level: float) -> str:
    base, own = row[0], row[-1]
    if not base or not own or base.amount(level).value < LEAST_BASE:
        return "- | -"
    return f"{_times(own.over(base, level))} | {_output_ratio(own, base, level)}"


def _output_ratio(result: Result, base: Result, level: float) -> str:
    return f"{result.output(level).value / base.output(level).value:.1f}"


def _table(case: Case, results: Sequence[Result]) -> Iterator[str]:
    rows = [found for policy in POLICIES if (found := _find(results, case.name, policy))]
    if not rows:
        return
    yield f"## {case.name}\n"
    yield f"{case.title}; {case.workers} workers, profile {case.profile}; {case.slo}; amounts in {rows[0].unit}.\n"
    yield "| policy | " + " | ".join(f"at {level:.0%} | tokens/s | of the default" for level in LEVELS) + " |"
    yield "|---" * (1 + 3 * len(LEVELS)) + "|"
    own = _find(results, case.name, DEFAULT)
    for row in rows:
        cells = (f"{_cell(row, level)} | {_times(row.over(own, level) if own else None)}" for level in LEVELS)
        yield f"| {'**' + row.policy + '**' if row.policy == DEFAULT else row.policy} | " + " | ".join(cells) + " |"
    yield ""


def _cell(result: Result | None, level: float) -> str:
    return f"{result.amount(level)} | {result.output(level).value:,.0f}" if result else "- | -"


def _times(value: Mean | None) -> str:
    return f"{value.value:.2f}" if value else "-"


def _beyond() -> Iterator[str]:
    yield "## Beyond what holds\n"
    yield "No policy holds more than there is. What becomes of 1.2 to 2 times as much, who is served then and who is"
    yield "told to come back, is in [admission.md](admission.md#what-it-does), by the same command.\n"


def _policies() -> Iterator[str]:
    yield "## The policies\n"
    yield "| name | |\n|---|---|"
    for policy in POLICIES.values():
        yield f"| `{policy.name}` | {policy.summary} |"
    yield "\nEach is a module in `picker/scheduling/policies`; on a trace of your own they are compared by"
    yield "`picker simulate compare --trace FILE --policy a,b`."


def _find(results: Sequence[Result], case: str, policy: str, slo: str = "") -> Result | None:
    """At the scale at which the default was measured: others are compared with nothing else."""
    scales = {each.scale for each in results if (each.case, each.policy) == (case, DEFAULT)}
    for result in results:
        if (result.case, result.policy, result.slo) == (case, policy, slo) and (not scales or result.scale in scales):
            return result
    return None
