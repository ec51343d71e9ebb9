"""POST /v1/responses: a list of items, which engines turn into a chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from picker.requests.body import count, fields, pending_prompt, scalar, text, value
from picker.requests.model import ChatPrompt, Dialect, InferenceRequest, PendingPrompt
from picker.requests.templating import declared_tools, template_variables

Message = dict[str, Any]


class Response(msgspec.Struct):
    """The fields that bear on placement."""

    model: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()
    max_output_tokens: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()


def read(body: bytes) -> InferenceRequest:
    """Raises BadRequest."""
    response = fields(Response, body)
    return InferenceRequest(
        Dialect.OPENAI,
        model=scalar(response.model, str),
        prompt=pending(response),
        max_tokens=count(response.max_output_tokens),
        stream=scalar(response.stream, bool) or False,
        cache_salt=scalar(response.cache_salt, str) or "",
        priority=scalar(response.priority, int) or 0,
    )


def pending(response: Response) -> PendingPrompt | None:
    """None for a response that continues a stored one: only the worker that stored it knows the beginning."""
    if not response.input or scalar(response.previous_response_id, str):
        return None
    seen = (response.input, response.instructions, response.tools, response.reasoning, response.chat_template_kwargs)
    return pending_prompt(lambda: _prompt(response), *seen)


def _prompt(response: Response) -> ChatPrompt | None:
    effort = (value(response.reasoning, dict[str, Any]) or {}).get("effort")
    variables = template_variables(response.chat_template_kwargs, effort)
    items = value(response.input, str | list[Any])
    if not items or variables is None:
        return None
    try:
        tools = declared_tools([_nested(tool) for tool in value(response.tools, list[Any]) or () if _is_function(tool)])
        messages = _messages(text(response.instructions), items)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return None
    is_open = isinstance(items, list) and _is_open(items[-1])
    return ChatPrompt(
        messages, tools, None, variables, add_generation_prompt=not is_open, continue_final_message=is_open
    )


def _is_function(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "function"


def _nested(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {name: part for name, part in tool.items() if name != "type"}}


def _is_open(item: Any) -> bool:
    """Whether the last item is an answer that broke off, to be continued."""
    if not isinstance(item, dict) or item.get("type", "message") not in ("message", "reasoning"):
        return False
    return item.get("status") in ("in_progress", "incomplete")


def _messages(instructions: str, items: str | list[Any]) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for item in items:
        _ITEMS.get(item.get("type", "message"), _other)(item, messages)
    return messages


def _function_call(item: Message, messages: list[Message]) -> None:
    _call(item["call_id"], item["name"], item["arguments"], messages)


def _custom_call(item: Message, messages: list[Message]) -> None:
    _call(item["call_id"], item["name"], json.dumps({"input": item.get("input") or ""}, ensure_ascii=False), messages)


def _call(identifier: str, name: str, arguments: str, messages: list[Message]) -> None:
    """Calls, reasoning and text that follow each other are one turn of the assistant's."""
    call = {"id": identifier, "function": {"name": name, "arguments": arguments}, "type": "function"}
    if messages and messages[-1].get("role") == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "tool_calls": [call]})


def _output(item: Message, messages: list[Message]) -> None:
    messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})


def _reasoning(item: Message, messages: list[Message]) -> None:
    if item.get("encrypted_content"):
        raise ValueError("encrypted reasoning is the engine's secret")
    parts = item.get("content") or item.get("summary") or [{"text": ""}]
    _assistant("reasoning", parts[0]["text"], messages)


def _message(item: Message, messages: list[Message]) -> None:
    if item["role"] != "assistant":
        messages.append(item)
        return
    content = item["content"]
    _assistant("content", content if isinstance(content, str) else content[0]["text"], messages)


def _assistant(part: str, content: str, messages: list[Message]) -> None:
    if messages and messages[-1].get("role") == "assistant" and messages[-1].get(part) is None:
        messages[-1][part] = content
    else:
        messages.append({"role": "assistant", part: content})


def _other(item: Message, messages: list[Message]) -> None:
    """An item of a newer kind. With a role it is taken for a message; without, the engine will refuse it."""
    _message(item, messages)


_ITEMS: dict[str, Callable[[Message, list[Message]], None]] = {
    "message": _message,
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
}
