"""How long one step of an engine takes: a linear model, with constants for a few models and GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """The constants of one model on one worker.

    A step takes `a + b * prefill tokens + q * attention + d * decodes + e * decode context` seconds, where attention is
    the sum over prefill chunks of chunk * (context before it + chunk / 2), in tokens squared. `kv_tokens` is the size
    of the KV cache; `max_batch_tokens` and `max_seqs` are vLLM's `--max-num-batched-tokens` and `--max-num-seqs`.
    """

    a: float
    b: float
    q: float
    d: float
    e: float
    kv_tokens: int
    max_batch_tokens: int = 8192
    max_seqs: int = 256

    def step_seconds(self, *, prefill_tokens: int, attention: float, decodes: int, decode_context: int) -> float:
        """Duration of a step of this content."""
        return self.a + self.b * prefill_tokens + self.q * attention + self.d * decodes + self.e * decode_context


# The first three are derived from weight and KV bytes over 60 % of the memory bandwidth and from FLOP ratios, not
# fitted to measurements. `demo` is the first with one token in place of eight, so that prompts of 1,500 tokens, which
# a laptop can tokenise, cost what prompts of 12,000 cost there (about a second when cold); its KV cache is smaller
# still, so that four such workers hold some dozens of conversations and must evict.
PROFILES = {
    "70b": Profile(a=0.020, b=1 / 10_500, q=2.4e-9, d=40e-6, e=4.1e-8, kv_tokens=430_000),
    "32b": Profile(a=0.014, b=1 / 16_300, q=2.4e-9, d=35e-6, e=6.5e-8, kv_tokens=270_000),
    "8b": Profile(a=0.007, b=1 / 41_000, q=1.0e-9, d=20e-6, e=6.5e-8, kv_tokens=400_000),
    "demo": Profile(a=0.020, b=8 / 10_500, q=1.5e-7, d=40e-6, e=3.3e-7, kv_tokens=24_576, max_batch_tokens=1024),
}
