"""Conversations of all kinds, made up from a seed: what clients of the chat API send."""

from __future__ import annotations

import json
from random import Random
from typing import Any

Message = dict[str, Any]

WORDS = (
    "the", "fox", "jumps", "over", "42", "3.14", "naïve", "café", "日本語", "Привет", "مرحبا", "🙂", "👩‍👩‍👧",
    "e\u0301", "don't", "<b>", "</b>", "<|", "|>", "{}", "{{", "}}", "{%", "\\n", "\u00a0", "\u200d", "x=1",
    "def f():", "İ", "#", "<think>",
)  # fmt: skip
BLANKS = (" ", " ", " ", "  ", "\n", "\n\n", "\t", "")

TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather in a city, like “Zürich” & others <now>",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object"}}},
]


def text(random: Random, most_words: int = 60) -> str:
    """A text that tokenizers find difficult; sometimes empty, sometimes with blanks around it."""
    pieces = [random.choice(WORDS) + random.choice(BLANKS) for _ in range(random.randint(0, most_words))]
    return random.choice(("", " ", "\n", "")) + "".join(pieces)


def chat(random: Random, turns: int | None = None) -> list[Message]:
    """Turns of user and assistant, perhaps after a system message."""
    messages: list[Message] = []
    if random.random() < 0.5:
        messages.append({"role": "system", "content": text(random)})
    for _ in range(random.randint(1, 5) if turns is None else turns):
        messages.append({"role": "user", "content": text(random)})
        messages.append({"role": "assistant", "content": text(random)})
    return messages if random.random() < 0.3 else messages[:-1]


def in_parts(random: Random, messages: list[Message]) -> list[Message]:
    """The same, with users' texts as a list of parts."""
    return [
        {**message, "content": [{"type": "text", "text": part} for part in (message["content"], text(random, 5))]}
        if message["role"] == "user"
        else message
        for message in messages
    ]


def with_tool_calls(random: Random) -> list[Message]:
    """A chat in which the assistant has called tools; arguments are JSON text, as the API has it."""
    messages: list[Message] = [{"role": "user", "content": text(random)}]
    for number in range(random.randint(1, 3)):
        identifier = f"call{number:05}"
        arguments = {"city": text(random, 3), "days": random.randint(-5, 5)}
        call = {"name": "get_weather", "arguments": json.dumps(arguments, ensure_ascii=random.random() < 0.5)}
        messages += [
            {
                "role": "assistant",
                "content": random.choice(("", None, text(random, 10))),
                "tool_calls": [{"id": identifier, "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": identifier, "name": "get_weather", "content": text(random, 10)},
        ]
    if random.random() < 0.5:
        messages.append({"role": "assistant", "content": text(random, 10)})
        messages.append({"role": "user", "content": text(random, 10)})
    return messages
