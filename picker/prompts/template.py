"""Chat messages to text, by the model's own template, as the engines render it.

The environment follows what Hugging Face's `apply_chat_template`, and so vLLM and SGLang, set up: sandboxed and
immutable, `trim_blocks` and `lstrip_blocks` on, loop controls, a `tojson` that leaves non-ASCII alone,
`raise_exception`, `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class CannotRender(ValueError):
    """The template refuses these messages, or fails on them. The engine will say so itself; we route by load."""


class ChatTemplate:
    """A model's chat template, compiled once."""

    def __init__(self, source: str, special_tokens: dict[str, str] | None = None):
        """Raises CannotRender for a template that does not compile."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=_now)
        environment.globals.update(special_tokens or {})
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CannotRender(f"chat template does not compile: {error}") from None

    def render(self, messages: Sequence[dict[str, Any]], /, **variables: Any) -> str:
        """The prompt's text. Raises CannotRender for whatever the template cannot make sense of."""
        variables.setdefault("add_generation_prompt", True)
        try:
            return self._template.render(messages=messages, **variables)
        # A template is a program by somebody else, run on a client's input: any exception is an answer about these two.
        except Exception as error:
            raise CannotRender(type(error).__name__) from None


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
