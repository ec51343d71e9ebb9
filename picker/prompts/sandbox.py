"""Jinja's immutable sandbox, without asking it the same question a thousand times.

The sandbox examines each attribute that a template reads, about 2 us a time, which for 250 messages is most of the
rendering. Of an object of a plain type the verdict depends on the type alone, so it is given once, by the sandbox
itself, when this module is loaded; and a field of a message is no attribute of `dict`, so there is nothing to examine.

Not even a function is called for such a field, nor for what a loop tells of itself: the code that a template is
compiled to looks into the dict, or asks the loop.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
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
    loop = {(LoopContext, name): True for name in _OF_LOOPS}
    return frozenset(pair for pair, is_safe in (verdicts | loop).items() if is_safe)


_OF_LOOPS = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
_SAFE = _safe()
_MISSING = object()
_DICT_ATTRIBUTES = frozenset(dir(dict))


class _DirectFields(CodeGenerator):
    """`message.role` and `message["role"]` become a look into the dict that `message` is, if it is one and has it."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        """An attribute; of a dict's own ones the sandbox judges."""
        self.write("(")
        target = node.node
        if isinstance(target, nodes.Name) and target.name == "loop" and node.attr in _OF_LOOPS:
            self._emit(frame, target, f".{node.attr} if type(", target, ") is LoopContext else ")
        elif node.attr not in _DICT_ATTRIBUTES:
            self._emit_field(frame, target, node.attr)
        super().visit_Getattr(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """An item, or a slice."""
        self.write("(")
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self._emit_field(frame, node.node, node.arg.value)
        super().visit_Getitem(node, frame)
        self.write(")")

    def _emit_field(self, frame: Frame, target: nodes.Expr, field: str) -> None:
        # A name can be evaluated thrice; anything else may take its time, or give another answer.
        if isinstance(target, nodes.Name):
            key = repr(field)
            self._emit(frame, target, f"[{key}] if type(", target, f") is dict and {key} in ", target, " else ")

    def _emit(self, frame: Frame, *pieces: nodes.Node | str) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self.write(piece)
            else:
                self.visit(piece, frame)


class Sandbox(ImmutableSandboxedEnvironment):
    """Gives the answers that its parent gives."""

    code_generator_class = _DirectFields

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`, or the item of that name, or undefined."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is Namespace and not attribute.startswith("_"):
            found = getattr(obj, attribute, _MISSING)
            return super().getattr(obj, attribute) if found is _MISSING else found
        if (kind, attribute) in _SAFE:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)
