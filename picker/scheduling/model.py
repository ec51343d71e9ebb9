"""The step-time model of a worker: how long it is expected to take for what.

An engine step that prefills `n` tokens behind a context of `c` and decodes `r` requests of `x` context tokens takes

    step_s + prefill_s_per_token * n + prefill_s_per_token2 * n * (c + n / 2)
           + decode_s_per_request * r + decode_s_per_context_token * x

The defaults are of an 8B model on one H100-class GPU. A worker that is faster or slower is learnt online
(`picker.fleet.inflight.InFlight.speed`), so wrong constants cost little.
"""

from __future__ import annotations

from typing import Any, overload

import msgspec
import numpy as np

from picker.fleet.inflight import Floats
from picker.fleet.masks import Ints


class WorkerModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the step model. Seconds, and seconds per token.

    step_s: of an engine step, whatever is in it.
    prefill_s_per_token, prefill_s_per_token2: of prefill, and of its attention to what is in front.
    decode_s_per_request, decode_s_per_context_token: of decoding, for each request and for each token of its context.
    batch_tokens: that an engine prefills in one step at most (max_num_batched_tokens).
    adapter_load_s: until a LoRA adapter that is not loaded is.
    """

    step_s: float = 0.007
    prefill_s_per_token: float = 1 / 41_000
    prefill_s_per_token2: float = 1.0e-9
    decode_s_per_request: float = 20e-6
    decode_s_per_context_token: float = 6.5e-8
    batch_tokens: int = 8192
    adapter_load_s: float = 0.5

    @overload
    def decode_step_s(self, requests: int, context_tokens: int) -> float: ...
    @overload
    def decode_step_s(self, requests: Ints, context_tokens: Ints) -> Floats: ...
    def decode_step_s(self, requests: Any, context_tokens: Any) -> Any:
        """Seconds between two tokens of so many requests, of so much context together, where nothing is prefilled."""
        return self.step_s + self.decode_s_per_request * requests + self.decode_s_per_context_token * context_tokens

    def one_more_s(self, context_tokens: float) -> float:
        """Seconds that one more request, of so much context, adds to each step."""
        return self.decode_s_per_request + self.decode_s_per_context_token * context_tokens

    def prefill_s(self, prompt_tokens: int, hit_tokens: Ints) -> Floats:
        """Seconds of prefill for a prompt of which so much is cached; same shape as `hit_tokens`."""
        # An engine recomputes at least the last token.
        cached = hit_tokens.astype(np.float64)
        new = np.maximum(prompt_tokens - cached, 1.0)
        steps = np.ceil(new / self.batch_tokens) if prompt_tokens > self.batch_tokens else 1.0
        # What is new attends to what is cached and, on average, to half of itself: together to half of both.
        attended_s = self.prefill_s_per_token2 / 2
        of_a_token = attended_s * cached + (attended_s * prompt_tokens + self.prefill_s_per_token)
        seconds: Floats = new * of_a_token + steps * self.step_s
        return seconds

    def prefill_on_one_s(self, prompt_tokens: int, hit_tokens: int = 0) -> float:
        """As `prefill_s`, on a single worker."""
        return self.prefill_s(prompt_tokens, np.array([hit_tokens], np.int64)).item()
