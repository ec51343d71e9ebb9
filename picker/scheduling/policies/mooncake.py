"""Mooncake's conductor: the least predicted time to first token, queued prefill plus own (Qin et al., FAST '25).

Without its transfer of KV blocks between workers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "mooncake"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Seconds of prefill that are queued, and of this request's own, shape (slots,)."""
    books = situation.outstanding
    ran = np.where(books.prefill_s > 0, situation.now - books.progress_at, 0.0)
    return {"queue": np.maximum(0.0, books.prefill_s - ran), "prefill": situation.work_s}
