"""Jinja's immutable sandbox, without asking it the same question a thousand times.

The sandbox examines each attribute that a template reads, about 2 us a time, which for 250 messages is most of the
rendering. Of an object of a plain type the verdict depends on the type alone, so it is given once, by the sandbox
itself, when this module is loaded; and a field of a message is no attribute of `dict`, so there is nothing to examine.
"""

from __future__ import annotations

from typing import Any

from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_SAMPLES = {str: "", list: [], dict: {}}
_INTERCEPTED = ("format", "format_map")
"""The sandbox wraps these of a string."""


def _safe() -> frozenset[tuple[type, str]]:
    judge = ImmutableSandboxedEnvironment()
    verdicts = {
        (kind, name): judge.is_safe_attribute(sample, name, getattr(sample, name))
        for kind, sample in _SAMPLES.items()
        for name in dir(kind)
        if name not in _INTERCEPTED
    }
    loop = {(LoopContext, name): not name.startswith("_") for name in dir(LoopContext)}
    return frozenset(pair for pair, is_safe in (verdicts | loop).items() if is_safe)


_SAFE = _safe()
_DICT_ATTRIBUTES = frozenset(dir(dict))


def _is_variable(obj: Any, attribute: str) -> bool:
    """Whether it is one of the template's own, in its `namespace()`."""
    return type(obj) is Namespace and not attribute.startswith("_") and hasattr(obj, attribute)


class Sandbox(ImmutableSandboxedEnvironment):
    """Gives the answers that its parent gives."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`, or the item of that name, or undefined."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind, attribute) in _SAFE or _is_variable(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)
