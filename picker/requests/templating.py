"""What chat templates see besides messages, as vLLM 0.32 hands it over, whichever API it came by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from picker.requests.body import value


def template_variables(kwargs: msgspec.Raw, effort: Any) -> dict[str, Any] | None:
    """What the template sees besides messages; None where the request brings its own template, which we do not trust.

    A reasoning effort switches `enable_thinking` for templates that know nothing else (vLLM 0.32 does so).
    """
    variables = value(kwargs, dict[str, Any]) or {}
    if not {"chat_template", "tokenize"}.isdisjoint(variables):
        return None
    if effort is not None:
        variables = {"enable_thinking": effort != "none", **variables, "reasoning_effort": effort}
    return variables


def declared(tool: Any) -> dict[str, Any]:
    """A tool as vLLM hands it to the template: its fields in a fixed order, those left out as null, `strict` only if
    set. Raises ValueError for what is none.
    """
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise ValueError("a tool has no function")
    described = {name: function.get(name) for name in ("name", "description", "parameters")}
    switches = {name: on for name in ("strict", "defer_loading") if (on := function.get(name)) is not None}
    return {"type": "function", "function": described | switches} | {
        name: extra for name, extra in tool.items() if name not in ("type", "function")
    }


def declared_tools(tools: Sequence[Any]) -> list[dict[str, Any]] | None:
    """All of them, None where there are none. Raises ValueError."""
    return [declared(tool) for tool in tools] or None
