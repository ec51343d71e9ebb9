"""Whether a template takes a message's content as a list of parts or as one string, told by its syntax.

vLLM 0.32's rule ("openai" or "string"), so that both sides feed a template alike: a template takes parts if it loops
over the content of one of the messages that it loops over, or over what a macro is given as such, or, outside of
macros, over something called `content`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jinja2 import nodes


def takes_parts(template: nodes.Template) -> bool:
    """Whether content is to be given as parts."""
    chats = _aliases(template, "messages")
    targets = [loop.target for loop in _loops(template) if _reads(loop.iter, chats)]
    messages = {target.name for target in targets if isinstance(target, nodes.Name)}
    macros = list(template.find_all(nodes.Macro))
    inside = {id(loop) for macro in macros for loop in _loops(macro)}
    return (
        any(_reads(loop.iter, messages, "content") for loop in _loops(template))
        or any(_loops_over(macro, _given_content(template, macro, messages)) for macro in macros)
        or any(id(loop) not in inside and _is_name(loop.iter, {"content"}) for loop in _loops(template))
    )


def _loops(node: nodes.Node) -> Iterator[nodes.For]:
    return node.find_all(nodes.For)


def _loops_over(macro: nodes.Macro, names: set[str]) -> bool:
    return any(_is_name(loop.iter, names) for loop in _loops(macro))


def _given_content(template: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """The macro's parameters that a call of it fills with a message's content."""
    parameters = [argument.name for argument in macro.args]
    calls = [call for call in template.find_all(nodes.Call) if _is_name(call.node, {macro.name})]
    by_place = (pair for call in calls for pair in zip(parameters, call.args, strict=False))
    by_name = ((keyword.key, keyword.value) for call in calls for keyword in call.kwargs)
    return {name for name, value in (*by_place, *by_name) if _reads(value, messages, "content")}


def _aliases(template: nodes.Template, name: str) -> set[str]:
    """The names that `name` is assigned to, whole, filtered or sliced, and itself."""
    names = {name}
    assigned = [(each.target, each.node) for each in template.find_all(nodes.Assign)]
    for _ in assigned:
        names |= {target.name for target, value in assigned if isinstance(target, nodes.Name) and _reads(value, names)}
    return names


def _reads(node: nodes.Node, names: Iterable[str], key: str = "") -> bool:
    """Whether an expression is one of these variables, or their attribute `key`, perhaps filtered or sliced."""
    match node:
        case nodes.Filter(node=nodes.Node() as inner) | nodes.Test(node=inner):
            return _reads(inner, names, key)
        case nodes.Getitem(node=inner, arg=nodes.Slice()):
            return _reads(inner, names, key)
        case nodes.Getitem(node=inner, arg=nodes.Const(value=name)) | nodes.Getattr(node=inner, attr=name) if key:
            return bool(name == key) and _is_name(inner, names)
    return not key and _is_name(node, names)


def _is_name(node: nodes.Node, names: Iterable[str]) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names
