"""What a request takes of a worker's time."""

from __future__ import annotations

from picker.scheduling.model import WorkerModel


def work_s(model: WorkerModel, prefill_s: float, prompt_tokens: int, output_tokens: int, tpot_s: float) -> float:
    """Worker-seconds: its prefill, and its share of the steps in which a full worker decodes.

    A worker is full when its steps take `tpot_s`, with requests of this size: then `running` share each step.
    """
    context = prompt_tokens + output_tokens / 2
    each_s = model.one_more_s(context)
    running = max(1.0, (tpot_s - model.step_s) / each_s)
    return prefill_s + output_tokens * max(tpot_s, model.step_s + each_s) / running
