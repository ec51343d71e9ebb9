"""A client's messages to what the template sees, as vLLM 0.32 prepares them.

Content becomes one string (parts joined by line breaks) or a list of parts, whichever the template takes; a tool call's
arguments become an object; reasoning goes by all of its names; `developer` is `system` to templates that do not know
it. The other engines differ in details, which show up as predicted hits that do not happen.

Images, audio and video are known by what they are replaced with, which depends on the model: `MEDIA` is put before
each, and what follows the first of them in the text is not known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from picker.prompts.template import CannotRender

MEDIA = "\ufdd0"
"""A noncharacter: no text has it, no template writes it. A text that does ends its own prefix there."""

Message = dict[str, Any]

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_MEDIA = {
    "image_url": "image", "input_image": "image", "image_embeds": "image", "audio_url": "audio", "input_audio": "audio",
    "audio_embeds": "audio", "video_url": "video", "video_embeds": "video", "prompt_embeds": "text",
}  # fmt: skip
_PART_FIELDS = (
    frozenset({"type", "text", "refusal", "thinking", "uuid", "data", "detail", "name", "closed"}) | _MEDIA.keys()
)
_PLAIN = ("user", "assistant")
_BILLING = "x-anthropic-billing-header"


def conversation(messages: Sequence[Mapping[str, Any]], *, wants_parts: bool, knows_developer: bool) -> list[Message]:
    """What the template sees. Raises CannotRender for messages that no engine accepts."""
    try:
        chat = [_message(message, wants_parts) for message in messages]
    except (KeyError, TypeError, AttributeError):
        raise CannotRender("a message is malformed") from None
    if knows_developer or all(message["role"] != "developer" for message in chat):
        return chat
    return _system_first(chat)


def joined_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All system messages, whose content is text, as one in front."""
    system = "".join(message["content"] for message in messages if message["role"] == "system")
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": system}, *others] if system else others


def _message(message: Mapping[str, Any], wants_parts: bool) -> Message:
    role, content = message["role"], message.get("content")
    # Most of a long conversation; templates cannot change what they are given.
    if role in _PLAIN and type(content) is str and len(message) == 2:
        return {"role": role, "content": [{"type": "text", "text": content}]} if wants_parts else message  # type: ignore[return-value]
    if not isinstance(role, str):
        raise CannotRender("a role is no string")
    parts = [content] if isinstance(content, str) else content or []
    if role == "system":
        parts = [stripped for part in parts if (stripped := _without_billing(part))]
    seen: Message = {"role": role, "content": _parts(parts) if wants_parts else _joined(parts)}
    if role == "assistant":
        seen |= _said(message)
    elif role == "tool":
        seen |= _answered(message, seen["content"])
    elif role == "developer":
        seen["tools"] = message.get("tools")
    for name in ("name", "task"):
        if isinstance(text := message.get(name), str):
            seen[name] = text
    return seen


def _joined(parts: Sequence[Any]) -> str:
    """Where an engine puts a placeholder is up to the model; most often before the message's text."""
    texts = [text for part in parts if (text := _text(part))]
    return MEDIA * any(map(_is_media, parts)) + "\n".join(texts)


def _parts(parts: Sequence[Any]) -> list[Message]:
    seen: list[Message] = []
    for part in parts:
        if _is_media(part):
            seen += [{"type": "text", "text": MEDIA}, {"type": _MEDIA[_kind(part)], **_extra(part)}]
        elif isinstance(part, dict) and part.get("type") == "tool_reference":
            seen.append({"type": "tool_reference", "name": part.get("name")})
        elif (text := _text(part)) is not None:
            seen.append({"type": "text", "text": text, **(_extra(part) if isinstance(part, dict) else {})})
    return seen


def _text(part: Any) -> str | None:
    """A part's text; None for media and for what has none, which engines skip."""
    if isinstance(part, str):
        return part
    kind = _kind(part)
    if kind == "tool_reference":
        return str(part["name"])
    text = part.get(kind if kind in ("refusal", "thinking") else "text") if kind in _TEXTS else None
    if text is not None and not isinstance(text, str):
        raise CannotRender("a part's text is no string")
    return text


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and _kind(part) in _MEDIA


def _kind(part: Mapping[str, Any]) -> str:
    """A part's type, or what its fields tell where that is left out. Raises CannotRender where it means nothing."""
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        kind = next((name for name in (*_MEDIA, "tool_reference") if name in part), kind)
    if kind not in _TEXTS and kind not in _MEDIA and kind != "tool_reference":
        raise CannotRender("a part is of no known type")
    return str(kind)


def _extra(part: Mapping[str, Any]) -> Message:
    return {name: value for name, value in part.items() if name not in _PART_FIELDS}


def _without_billing(part: Any) -> Any:
    """Claude Code's attribution line changes with every request; engines drop it to keep the prefix."""
    text = part.get("text") if isinstance(part, dict) else part
    if not isinstance(text, str) or not text.startswith(_BILLING):
        return part
    rest = text.partition("\n")[2]
    return ({**part, "text": rest} if isinstance(part, dict) else rest) if rest else None


def _said(message: Mapping[str, Any]) -> Message:
    said: Message = {}
    if calls := message.get("tool_calls"):
        said["tool_calls"] = [_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        said |= dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning)
    return said


def _call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise CannotRender("a tool call is of no known type")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Message:
    """Templates take an object. History that is no JSON must not spoil the rest: it counts as empty."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _answered(message: Mapping[str, Any], content: str | list[Message]) -> Message:
    answered: Message = {"tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {}
    # Most templates take a tool's answer as a string, even those that take parts elsewhere.
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        answered["content"] = "\n".join(part["text"] for part in content)
    return answered


def _system_first(chat: list[Message]) -> list[Message]:
    """Developer messages as system ones, and all of these as one, in front."""
    renamed = [
        {name: part for name, part in message.items() if name != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in chat
    ]
    system = [message for message in renamed if message["role"] == "system"]
    if len(system) == 1 and renamed[0] is system[0]:
        return renamed
    contents = [text for message in system if (text := _flat(message["content"]))]
    others = [message for message in renamed if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(contents)}, *others]


def _flat(content: str | list[Message]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)
