"""Chat messages to text, by the model's own template, as the engines render it.

The environment follows what Hugging Face's `apply_chat_template`, and so vLLM and SGLang, set up: sandboxed and
immutable, `trim_blocks` and `lstrip_blocks` on, loop controls, the `generation` tag, a `tojson` that leaves non-ASCII
alone, `raise_exception`, `strftime_now`; tools and documents are always defined, as None where there are none.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from picker.prompts.content_format import takes_parts
from picker.prompts.sandbox import Sandbox

_CONTINUED = "\ufdd1continued "
"""Stands behind a message that is to be continued, to find its end in the text. A noncharacter: no text has it."""


class CannotRender(ValueError):
    """The template refuses these messages, or fails on them. The engine will say so itself; we route by load."""


class ChatTemplate:
    """A model's chat template, compiled once. Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None):
        """Raises CannotRender for a template that does not compile."""
        environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=_now)
        self._special_tokens = dict(special_tokens or {})
        self.source = source
        try:
            self._syntax = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CannotRender(f"chat template does not compile: {error}") from None

    @functools.cached_property
    def wants_parts(self) -> bool:
        """Whether it takes a message's content as a list of parts; else it gets one string."""
        return takes_parts(self._syntax)

    @functools.cached_property
    def takes_late_system(self) -> bool:
        """Whether a system message may come after others, found out by trying."""
        try:
            self.render(
                [{"role": role, "content": "t"} for role in ("system", "user") * 2], add_generation_prompt=False
            )
        except CannotRender:
            return False
        return True

    @functools.cached_property
    def written(self) -> str:
        """All that it may write of its own: its source, and the special tokens that it names."""
        return "".join([self.source, *(text for name, text in self._special_tokens.items() if name in self.source)])

    @functools.cached_property
    def knows_developer(self) -> bool:
        """Whether it has a word for the role `developer`; engines call it `system` otherwise."""
        return '"developer"' in self.source or "'developer'" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt's text. Raises CannotRender for whatever the template cannot make sense of."""
        context = {**self._special_tokens, **(variables or {})}
        context |= {"tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        context["messages"] = _continued(messages) if continue_final_message else messages
        try:
            text = self._template.render(context)
        # A template is a program by somebody else, run on a client's input: any exception is an answer about these two.
        except Exception as error:
            raise CannotRender(type(error).__name__) from None
        return _cut(text) if continue_final_message else text


class _Generation(Extension):
    """`{% generation %}` marks what a model has said, for training. It writes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """What stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _continued(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with a mark behind the last one's text."""
    content = messages[-1].get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + _CONTINUED}]
    content = content if isinstance(content, list) else []
    for place in reversed(range(len(content))):
        part = content[place]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            marked = [*content[:place], {**part, "text": part["text"] + _CONTINUED}, *content[place + 1 :]]
            return [*messages[:-1], {**messages[-1], "content": marked}]
    raise CannotRender("nothing to continue")


def _cut(text: str) -> str:
    """The text up to the mark. Where the template has stripped the message's end, so is what stands before it."""
    place = text.rfind(_CONTINUED.rstrip())
    if place < 0:
        raise CannotRender("the template leaves out what is to be continued")
    return text[:place] if text.startswith(_CONTINUED, place) else text[:place].rstrip()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
