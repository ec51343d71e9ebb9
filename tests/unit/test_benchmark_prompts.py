"""The benchmark of prompts compares things that come to the same end. Never how fast."""

import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.prompts.contenders import CONTENDERS, MODEL
from benchmarks.prompts.conversations import Conversation
from benchmarks.prompts.measure import Measurement, Task
from picker.prompts.tokenizer import ModelTokenizer
from picker.simulation.words import DEMO_TOKENIZER

ROOT = Path(__file__).parents[2]
TINY = ModelTokenizer.load(DEMO_TOKENIZER)


def test_every_contender_finds_the_same_blocks() -> None:
    conversation = Conversation(TINY, MODEL, 4_000)
    reads = [contender.make(TINY) for contender in CONTENDERS]
    for body in (conversation.history, conversation.body(), conversation.other(1)):
        first, *others = [read(body) for read in reads]
        assert len(first) > 30
        assert all(each == first for each in others)


def test_a_conversation_keeps_all_but_its_last_turn() -> None:
    conversation = Conversation(TINY, MODEL, 8_000)
    read = CONTENDERS[0].make(TINY)
    one, other = (read(conversation.body()) for _ in range(2))
    shared = sum(left == right for left, right in zip(one, other, strict=False))
    assert 8_000 * 0.9 < len(one) * 64 < 8_000 * 1.1
    assert len(one) - 12 < shared < len(one)
    assert read(conversation.other(1))[0] != one[0]


def test_a_measurement_has_all_its_figures() -> None:
    task = Task(CONTENDERS[-1].label, str(DEMO_TOKENIZER), 1_000, 2, 1)
    command = [sys.executable, "-m", "benchmarks.prompts.measure"]
    done = subprocess.run(command, input=msgspec.json.encode(task), stdout=subprocess.PIPE, check=True, cwd=ROOT)
    found = msgspec.json.decode(done.stdout, type=Measurement)
    assert found.task == task
    assert found.wall_ms > 0 and found.cpu_ms > 0 and found.peak_mb > 0
