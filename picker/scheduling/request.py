"""What a decision is made about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from picker.scheduling.profile import DEFAULT, Profile


@dataclass(frozen=True, slots=True)
class OtherRole:
    """Workers with one of these values of a label do something else; see `picker.scheduling.disaggregation`."""

    label: str
    values: frozenset[str]


class SchedulingRequest(msgspec.Struct, frozen=True, gc=False):
    """A request, reduced to what bears on its placement.

    `model` is None where the client named none (a GET, an unknown path): any worker will do. `chain` holds the
    prompt's index blocks and `block_tokens` what one of them stands for; `exact` says that they are of tokens, as
    engines announce them, and not of text. `subset` is the proxy's own restriction to endpoints; None is none.
    `avoid` holds endpoints that have failed this request; they are taken only where there are no others.
    `sequence` numbers the requests of this process, from 0. `session` is what the client sends to stay on one worker.

    `wanted_output_tokens` is what the client has asked for at most, 0 where it did not say; `expected_output_tokens` is
    what will come of it. `adapter` is the LoRA adapter among `model`'s names, if it is one. `require` holds labels that
    a worker must have for this request, besides those of its profile. `role` rules out workers that
    do not do this stage of a disaggregated request.
    """

    sequence: int
    model: str | None = None
    prompt_tokens: int = 0
    expected_output_tokens: int = 0
    chain: Sequence[int] = ()
    block_tokens: int = 64
    exact: bool = True
    subset: frozenset[str] | None = None
    avoid: frozenset[str] = frozenset()
    wanted_output_tokens: int = 0
    adapter: str = ""
    require: Mapping[str, Sequence[str]] = {}
    profile: Profile = DEFAULT
    session: str = ""
    role: OtherRole | None = None

    def __repr__(self) -> str:
        return f"<SchedulingRequest {self.sequence}, {self.prompt_tokens} tokens in {len(self.chain)} blocks>"
