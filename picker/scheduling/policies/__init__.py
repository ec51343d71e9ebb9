"""Policies by name.

One is a module with a `NAME` and `terms(situation)`. Ours are listed here; others come from installed packages, as
entry points of the group `picker.policies` that name such a module:

    [project.entry-points."picker.policies"]
    my-policy = "my_package.my_policy"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import numpy as np
import numpy.typing as npt

from picker.scheduling.policies import (
    aibrix,
    bounded_load,
    dynamo,
    dynamo_8,
    expected_delay,
    least_request,
    least_tokens,
    llm_d,
    llm_d_tuned,
    lmetric,
    mooncake,
    power_of_two,
    preble,
    random,
    round_robin,
    session_hash,
    sglang,
)
from picker.scheduling.policies.situation import Situation

GROUP = "picker.policies"
Terms = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Policy:
    """A named cost. `terms` gives the cost's parts, each of shape (slots,) and at least 0; the least sum wins.

    `summary` is the first sentence of its documentation.
    """

    name: str
    terms: Callable[[Situation], Terms]
    summary: str = ""


class UnknownPolicy(ValueError):
    """No policy of this name, or one that cannot be used. The message says which there are, or what is wrong."""


_OURS = (
    expected_delay, round_robin, random, least_request, least_tokens, power_of_two, session_hash, bounded_load,
    llm_d, llm_d_tuned, sglang, dynamo, dynamo_8, mooncake, preble, lmetric, aibrix,
)  # fmt: skip

POLICIES: Mapping[str, Policy] = {
    module.NAME: Policy(module.NAME, module.terms, (module.__doc__ or "").partition("\n")[0]) for module in _OURS
}
"""Those that ship with Picker; `find` knows others too."""


def find(name: str) -> Policy:
    """The policy of this name, ours or an installed package's. Raises UnknownPolicy."""
    if name in POLICIES:
        return POLICIES[name]
    for entry in _others():
        if entry.name == name:
            return _load(entry)
    raise UnknownPolicy(f"there is no policy {name!r}; there are: {', '.join(names())}")


def names() -> list[str]:
    """All that can be chosen, ours first."""
    return [*POLICIES, *sorted({entry.name for entry in _others()} - set(POLICIES))]


def _others() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _load(entry: EntryPoint) -> Policy:
    try:
        module = entry.load()
    except Exception as error:
        raise UnknownPolicy(f"policy {entry.name!r} ({entry.value}) cannot be imported: {error}") from error
    terms = getattr(module, "terms", None)
    if not callable(terms):
        raise UnknownPolicy(f"policy {entry.name!r} ({entry.value}) has no function terms(situation)")
    return Policy(entry.name, terms, (module.__doc__ or "").partition("\n")[0])
