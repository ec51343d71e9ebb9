"""Every setting of a configuration struct, with type, default and meaning, read from the structs themselves.

A meaning stands in the struct's docstring as `name: text` or `name, other: text`, with further lines below it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as types

_ENTRY = re.compile(r"(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*): (?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `path` is as in error messages: `limits.max_streams`, `profiles[].match.models`."""

    path: str
    type: str
    default: object
    meaning: str
    is_group: bool = False
    """Whether it stands for the settings below it."""


REQUIRED = NODEFAULT
"""The default of a setting that has none."""


def settings_of(struct: type[Any], prefix: str = "") -> Iterator[Setting]:
    """The settings of a struct and of those within it, in their order."""
    texts = meanings(struct)
    for field in types.type_info(struct).fields:  # type: ignore[attr-defined]
        path, inner = f"{prefix}{field.encode_name}", _struct_in(field.type)
        meaning = texts.get(field.encode_name, "")
        yield Setting(path, type_text(field.type), _default(field), meaning, is_group=inner is not None)
        if inner is not None:
            yield from settings_of(inner[0], f"{path}{inner[1]}.")


def meanings(struct: type[Any]) -> dict[str, str]:
    """From each setting that the struct's docstring explains to its explanation, in one line."""
    found: dict[str, str] = {}
    names: tuple[str, ...] = ()
    for line in inspect.cleandoc(struct.__doc__ or "").splitlines():
        if entry := _ENTRY.fullmatch(line):
            names = tuple(name for name in entry["names"].split(", ") if name in struct.__struct_fields__)
            found |= dict.fromkeys(names, entry["text"])
        elif line:
            found |= {name: f"{found[name]} {line}" for name in names}
        else:
            names = ()
    return found


def summary(struct: type[Any]) -> str:
    """What the docstring says before it comes to the settings, in one line."""
    lines: list[str] = []
    for line in inspect.cleandoc(struct.__doc__ or "").splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry and set(entry["names"].split(", ")) <= set(struct.__struct_fields__):
            break
        lines.append(line)
    return " ".join(line for line in lines if line)


def type_text(kind: types.Type) -> str:
    """A type in the words of people who write YAML."""
    match kind:
        case types.UnionType():
            return " or ".join(dict.fromkeys(type_text(each) for each in kind.types))
        case types.IntType() | types.FloatType():
            return "number" + _bounds(kind) if isinstance(kind, types.FloatType) else "whole number" + _bounds(kind)
        case types.LiteralType():
            return " or ".join(str(value) for value in kind.values)
        case types.ListType() | types.VarTupleType():
            return f"list of {type_text(kind.item_type)}"
        case types.DictType():
            return f"mapping to {type_text(kind.value_type)}"
        case types.StructType():
            return "group"
    return _PLAIN[type(kind)]


_PLAIN: dict[type[types.Type], str] = {
    types.StrType: "text",
    types.BoolType: "yes or no",
    types.NoneType: "nothing",
    types.AnyType: "anything",
}


def _bounds(kind: types.IntType | types.FloatType) -> str:
    limits = ((">", kind.gt), (">=", kind.ge), ("<", kind.lt), ("<=", kind.le))
    shown = ", ".join(f"{sign} {value:g}" for sign, value in limits if value is not None)
    return f" {shown}" if shown else ""


def _default(field: types.Field) -> object:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return field.default


def _struct_in(kind: types.Type) -> tuple[type[Any], str] | None:
    """The struct that a setting holds, or holds many of, and what stands between their names."""
    match kind:
        case types.StructType():
            return kind.cls, ""
        case types.UnionType():
            return next((found for each in kind.types if (found := _struct_in(each))), None)
        case types.ListType() | types.VarTupleType():
            found = _struct_in(kind.item_type)
            return (found[0], "[]") if found else None
        case types.DictType():
            found = _struct_in(kind.value_type)
            return (found[0], ".NAME") if found else None
    return None


def json_schema(struct: type[Any]) -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, with the meanings as descriptions."""
    [schema], components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    structs = {each.__name__: each for each in _structs(struct)}
    for name, component in components.items():
        texts = meanings(structs[name])
        component["description"] = summary(structs[name])
        for key, value in component.get("properties", {}).items():
            # A reference may not have siblings in older drafts, which editors still read.
            if key in texts:
                component["properties"][key] = (
                    {"description": texts[key], "allOf": [value]}
                    if "$ref" in value
                    else (value | {"description": texts[key]})
                )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": components}


def _structs(struct: type[Any]) -> Iterator[type[Any]]:
    yield struct
    for field in types.type_info(struct).fields:  # type: ignore[attr-defined]
        if inner := _struct_in(field.type):
            yield from _structs(inner[0])
