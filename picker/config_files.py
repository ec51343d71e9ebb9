"""YAML files to typed settings, with errors that name the file, the place in it and what to do.

agent.yaml: workers[0].ur is not a setting; did you mean url?
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")
# The errors of msgspec 0.19 and later: what is wrong, and behind it where, unless it is the whole.
_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<where>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_NUMBER_AS_TEXT = ("Expected `float`", "Expected `float | null`")


class ConfigError(ValueError):
    """A configuration that cannot be used. The message is for the operator."""


def load(path: Path, type: type[T]) -> T:
    """The settings in a file. Raises ConfigError.

    Unknown keys are refused where `type` and the structs in it are declared with forbid_unknown_fields.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text in UTF-8") from None
    return parse(text, type, path.name)


def parse(text: str, type: type[T], name: str) -> T:
    """As `load`, for the text of a file called `name`."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}{_line(error)}: is not YAML: {getattr(error, 'problem', None) or error}") from None
    return converted({} if data is None else data, type, name)


def converted(data: object, type: type[T], name: str) -> T:
    """As `load`, for the builtin values that a file called `name` holds."""
    try:
        return msgspec.convert(data, type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {_explain(str(error), type)}") from None


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark else ""


def _explain(error: str, type: type[Any]) -> str:
    match = _ERROR.fullmatch(error)
    assert match is not None
    what, where = match["what"], (match["where"] or "").removeprefix(".")
    if unknown := _UNKNOWN.fullmatch(what):
        return f"{_join(where, unknown[1])} is not a setting; {_suggest(unknown[1], _keys_at(type, where))}"
    if missing := _MISSING.fullmatch(what):
        return f"{_join(where, missing[1])} is missing"
    hint = (
        "; YAML takes 1e-9 for text, write 1.0e-9" if what.startswith(_NUMBER_AS_TEXT) and "got `str`" in what else ""
    )
    return f"{where or 'the file'}: {what[:1].lower()}{what[1:]}{hint}"


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _suggest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"


def _keys_at(type: type[Any], where: str) -> list[str]:
    """The settings at a path such as `pools[0].limits`. `[...]` stands for any key of a mapping."""
    found: list[msgspec.inspect.Type] = [msgspec.inspect.type_info(type)]
    for step in re.findall(r"\[[^]]*\]|[^.\[]+", where):
        found = [inner for outer in found for inner in _inside(outer, step)]
    structs = [kind for outer in found for kind in _alternatives(outer) if isinstance(kind, msgspec.inspect.StructType)]
    return [field.encode_name for struct in structs for field in struct.fields]


def _inside(outer: msgspec.inspect.Type, step: str) -> Iterator[msgspec.inspect.Type]:
    for kind in _alternatives(outer):
        match kind:
            case msgspec.inspect.StructType():
                yield from (field.type for field in kind.fields if field.encode_name == step)
            case msgspec.inspect.DictType():
                yield kind.value_type
            case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
                yield kind.item_type
            case _:
                pass


def _alternatives(kind: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
