"""POST /v1/messages, turned into a chat as vLLM 0.32 turns it, so that the tokens are the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from picker.requests.body import count, fields, pending_prompt, scalar, value
from picker.requests.model import ChatPrompt, Dialect, InferenceRequest
from picker.requests.templating import declared_tools, template_variables

_BILLING = "x-anthropic-billing-header"
"""Claude Code sends it as a system block; it changes with every request, so engines drop it."""

Message = dict[str, Any]


class Messages(msgspec.Struct):
    """The fields that bear on placement."""

    model: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    output_config: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()


def read(body: bytes) -> InferenceRequest:
    """Raises BadRequest."""
    message = fields(Messages, body)
    effort = (message.thinking, message.output_config)
    seen = (message.tools, message.chat_template_kwargs, *effort, message.system, message.messages)
    text = () if _BILLING.encode() in bytes(message.system) else seen
    return InferenceRequest(
        Dialect.ANTHROPIC,
        model=scalar(message.model, str),
        prompt=pending_prompt(lambda: _prompt(message), *seen, text=text) if message.messages else None,
        max_tokens=count(message.max_tokens),
        stream=scalar(message.stream, bool) or False,
        cache_salt=scalar(message.cache_salt, str) or "",
    )


def read_count(body: bytes) -> InferenceRequest:
    """POST /v1/messages/count_tokens: nothing is computed, let alone cached. Raises BadRequest."""
    return InferenceRequest(Dialect.ANTHROPIC, model=scalar(fields(Messages, body).model, str), max_tokens=0)


def _prompt(message: Messages) -> ChatPrompt | None:
    variables = template_variables(message.chat_template_kwargs, _effort(message))
    turns = value(message.messages, list[dict[str, Any]])
    if not turns or variables is None:
        return None
    try:
        tools = declared_tools([_tool(tool) for tool in value(message.tools, list[Any]) or ()])
        chat = [*_system(value(message.system, str | list[Any])), *_chat(turns)]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return ChatPrompt(chat, tools, None, variables, joins_system=True)


def _effort(message: Messages) -> str | None:
    thinking = value(message.thinking, dict[str, Any]) or {}
    if thinking.get("type") == "disabled":
        return "none"
    effort = (value(message.output_config, dict[str, Any]) or {}).get("effort")
    return effort if isinstance(effort, str) else None


def _tool(tool: Message) -> Message:
    parameters = tool["input_schema"]
    if "type" not in parameters:
        parameters = {**parameters, "type": "object"}
    names = ("name", "description", "strict", "defer_loading")
    return {"function": {**{name: tool.get(name) for name in names}, "parameters": parameters}}


def _system(system: str | list[Any] | None) -> list[Message]:
    joined = system if isinstance(system, str) else "".join(_system_texts(system or []))
    return [{"role": "system", "content": joined}] if joined else []


def _system_texts(blocks: list[Any]) -> list[str]:
    texts = [block["text"] for block in blocks if block["type"] == "text" and block.get("text")]
    return [each for each in texts if not each.startswith(_BILLING)]


def _chat(turns: list[Message]) -> list[Message]:
    chat: list[Message] = []
    for turn in turns:
        if turn["role"] == "system":
            content = turn["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            chat.extend(_system(blocks))
        elif isinstance(turn["content"], str):
            chat.append({"role": turn["role"], "content": turn["content"]})
        else:
            chat.extend(_turn(turn["role"], turn["content"]))
    return chat


def _turn(role: str, blocks: list[Message]) -> list[Message]:
    """One turn's messages: a user's tool results are messages of their own, before what else the user says."""
    results = [part for block in blocks if block["type"] == "tool_result" and role == "user" for part in _result(block)]
    parts = [part for block in blocks if (part := _part(role, block))]
    calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking" and block.get("thinking")]
    message: Message = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    return results if role == "user" and not parts else [*results, message]


def _part(role: str, block: Message) -> Message | None:
    match block["type"]:
        case "text" if block.get("text"):
            return {"type": "text", "text": block["text"]}
        case "image" if block.get("source"):
            return _image(block)
        case "tool_result" if role != "user":
            content = block.get("content")
            return {"type": "text", "text": f"Tool result: {content or ''}"}
    return None


def _image(block: Message) -> Message:
    # Which image it is does not matter here: the chain ends before the first one.
    return {"type": "image_url", "image_url": {"url": block["source"].get("url", "")}}


def _call(block: Message) -> Message:
    # Templates may write the identifier, and vLLM makes one up from the clock where it is missing.
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: Message) -> list[Message]:
    content = block.get("content")
    items = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    texts = [item.get("text", "") for item in items if item["type"] == "text"]
    images = [_image(item) for item in items if item["type"] == "image"]
    references = [
        {"type": "tool_reference", "name": item.get("tool_name") or item.get("name")}
        for item in items
        if item["type"] == "tool_reference"
    ]
    answer = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    messages: list[Message] = [{**answer, "content": "\n".join(texts)}]
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append({**answer, "content": references})
    return messages
