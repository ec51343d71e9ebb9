"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from picker.requests import openai_responses
from picker.requests.body import count, fields, opens_with, pending_prompt, scalar, value
from picker.requests.model import ChatPrompt, Dialect, InferenceRequest, PendingPrompt
from picker.requests.templating import declared_tools, template_variables


class Chat(msgspec.Struct):
    """The fields that bear on placement. `input` is for editors that post the responses API's body to this path."""

    model: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    reasoning_effort: msgspec.Raw = msgspec.Raw()
    chat_template: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    add_generation_prompt: msgspec.Raw = msgspec.Raw()
    continue_final_message: msgspec.Raw = msgspec.Raw()
    add_special_tokens: msgspec.Raw = msgspec.Raw()
    truncate_prompt_tokens: msgspec.Raw = msgspec.Raw()


def read(body: bytes) -> InferenceRequest:
    """Raises BadRequest."""
    chat = fields(Chat, body)
    return InferenceRequest(
        Dialect.OPENAI,
        model=scalar(chat.model, str),
        prompt=_pending(chat),
        max_tokens=count(chat.max_completion_tokens) or count(chat.max_tokens),
        answers=count(chat.n) or 1,
        stream=scalar(chat.stream, bool) or False,
        cache_salt=scalar(chat.cache_salt, str) or "",
        priority=scalar(chat.priority, int) or 0,
    )


def _pending(chat: Chat) -> PendingPrompt | None:
    if chat.messages:
        # Templates write tools and documents before the messages.
        seen = (chat.tools, chat.documents, chat.chat_template_kwargs, chat.messages)
        is_whole = not chat.truncate_prompt_tokens and not chat.chat_template
        return pending_prompt(lambda: _prompt(chat), *seen, text=seen if is_whole else ())
    if chat.input:
        as_response = openai_responses.Response(input=chat.input, instructions=chat.instructions)
        return openai_responses.pending(as_response)
    return None


def _prompt(chat: Chat) -> ChatPrompt | None:
    messages = value(chat.messages, list[dict[str, Any]])
    variables = template_variables(chat.chat_template_kwargs, scalar(chat.reasoning_effort, str))
    own_template = opens_with(chat.chat_template, b'"')
    cut = scalar(chat.truncate_prompt_tokens, int) is not None
    if not messages or variables is None or own_template or cut:
        return None
    try:
        tools = declared_tools(value(chat.tools, list[Any]) or ())
    except ValueError:
        return None
    return ChatPrompt(
        messages,
        tools,
        value(chat.documents, list[dict[str, Any]]),
        variables,
        add_generation_prompt=scalar(chat.add_generation_prompt, bool) is not False,
        continue_final_message=scalar(chat.continue_final_message, bool) or False,
        add_special_tokens=scalar(chat.add_special_tokens, bool) or False,
    )
