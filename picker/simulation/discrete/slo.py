"""Service-level objectives, and which requests met them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_OUTPUT = 32
"""Answers shorter than this count as if so long: a pause between two tokens is no rate."""

_TTFT = re.compile(r"(?P<fixed>[0-9.]+(?:ms|s))(?:\+(?P<cold>[0-9.]+)x)?")
_TIME = re.compile(r"([0-9.]+)(ms|s)")


class BadSlo(ValueError):
    """Not an objective. The message says what would be one."""


@dataclass(frozen=True, slots=True)
class Slo:
    """First token within `ttft_s` + `ttft_cold` times what the prompt takes alone and uncached; then `tpot_s` each.

    Failed requests miss every objective.
    """

    ttft_s: float = math.inf
    ttft_cold: float = 0.0
    tpot_s: float = math.inf

    def __str__(self) -> str:
        parts = []
        if self.ttft_s < math.inf:
            cold = f"+{self.ttft_cold:g}x" if self.ttft_cold else ""
            parts.append(f"ttft={self.ttft_s:g}s{cold}")
        if self.tpot_s < math.inf:
            parts.append(f"tpot={self.tpot_s * 1000:g}ms")
        return ",".join(parts)

    def is_met(self, ttft_s: float, decode_s: float, output_tokens: int, cold_s: float) -> bool:
        """Whether a request met it. `cold_s` is what its prompt takes alone and uncached."""
        if not ttft_s <= self.ttft_s + self.ttft_cold * cold_s or ttft_s == math.inf:
            return False
        return decode_s / max(output_tokens - 1, LEAST_OUTPUT - 1) <= self.tpot_s


def easiest(slos: Sequence[Slo]) -> Slo:
    """One that every request meets which meets one of these."""
    return Slo(max(s.ttft_s for s in slos), max(s.ttft_cold for s in slos), max(s.tpot_s for s in slos))


def parse(text: str) -> Slo:
    """`ttft=1.5s,tpot=50ms`; in `ttft=2s+1.5x` x is the prompt's own prefill, alone and uncached. Raises BadSlo."""
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name == "ttft" and (match := _TTFT.fullmatch(value)):
            values["ttft_s"], values["ttft_cold"] = _seconds(match["fixed"]), float(match["cold"] or 0)
        elif name == "tpot" and _TIME.fullmatch(value):
            values["tpot_s"] = _seconds(value)
        else:
            raise BadSlo(f"{part!r} is no objective; write ttft=1.5s,tpot=50ms or ttft=2s+1.5x,tpot=100ms")
    return Slo(**values)


def _seconds(text: str) -> float:
    number, unit = text.removesuffix("ms"), "ms"
    if number == text:
        number, unit = text.removesuffix("s"), "s"
    try:
        return float(number) / (1000 if unit == "ms" else 1)
    except ValueError:
        raise BadSlo(f"{text!r} is no time; write 50ms or 1.5s") from None
