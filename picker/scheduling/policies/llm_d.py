"""llm-d's inference scheduler with its default plugins: queue 2, KV-cache use 2, prefix 3, highest score.

Source: llm-d-router `pkg/epp/config/loader/defaults.go` and the scorers beside it. Scores are from 0 to 1:

    queue   (longest queue - own queue) / (longest - shortest), 1 if all are alike; of published queues
    kv      1 - share of the KV cache in use, as published
    prefix  cached blocks / blocks of the prompt

Its default knows prefixes by what it has placed itself; here it sees what workers announce, which is kinder.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.fleet.masks import Ints
from picker.scheduling.policies.situation import Situation

NAME = "llm-d"
QUEUE = 2.0
KV = 2.0
PREFIX = 3.0


def terms(situation: Situation) -> Mapping[str, Floats]:
    """What each scorer takes off its full weight, shape (slots,)."""
    view = situation.view
    return {
        "queue": QUEUE * _share_of_longest(view.waiting, situation),
        "kv": KV * np.clip(view.kv_used, 0.0, 1.0),
        "prefix": PREFIX * missed(situation),
    }


def missed(situation: Situation) -> Floats:
    """Share of the prompt's blocks that each worker lacks, shape (slots,); 0 for a prompt without blocks."""
    blocks = len(situation.request.chain)
    if not blocks:
        return np.zeros(len(situation.eligible))
    return 1.0 - situation.hit_tokens / (blocks * situation.request.block_tokens)


def _share_of_longest(waiting: Ints, situation: Situation) -> Floats:
    queues = waiting[situation.eligible]
    shortest, longest = (int(queues.min()), int(queues.max())) if len(queues) else (0, 0)
    return np.clip((waiting - shortest) / max(1, longest - shortest), 0.0, 1.0)
