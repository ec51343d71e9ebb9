"""Finds out whose configuration it is, and has it read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from picker.migrate import aibrix, endpoint_picker_config, epp, routers
from picker.migrate.flags import Table, apply
from picker.migrate.imported import Imported

_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=.*", re.DOTALL)


class NotUnderstood(ValueError):
    """Nobody's configuration that is known here. The message says what would be."""


def read(source: Sequence[str]) -> Imported:
    """One file's name, or the words of a command line. Raises NotUnderstood."""
    if len(source) == 1 and not source[0].startswith("-") and not _ASSIGNMENT.fullmatch(source[0]):
        return _file(Path(source[0]))
    environment = dict(word.split("=", 1) for word in source if _ASSIGNMENT.fullmatch(word))
    return _command_line([word for word in source if not _ASSIGNMENT.fullmatch(word)], environment)


def _file(path: Path) -> Imported:
    try:
        data: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NotUnderstood(f"{path}: cannot be read as YAML: {_first_line(error)}") from None
    if not isinstance(data, dict):
        raise NotUnderstood(f"{path}: is not a mapping; expected kind: {endpoint_picker_config.KIND}")
    if data.get("kind") == "ConfigMap" and (inner := _in_config_map(data)):
        data = inner
    if data.get("kind") != endpoint_picker_config.KIND:
        raise NotUnderstood(f"{path}: kind is {data.get('kind')!r}; expected {endpoint_picker_config.KIND}")
    return endpoint_picker_config.read(data, path.name)


def _in_config_map(data: dict[str, Any]) -> dict[str, Any] | None:
    """Charts carry the file inside a ConfigMap."""
    for text in (data.get("data") or {}).values():
        try:
            inner = yaml.safe_load(text)
        except yaml.YAMLError:
            continue
        if isinstance(inner, dict) and inner.get("kind") == endpoint_picker_config.KIND:
            return inner
    return None


def _command_line(words: Sequence[str], environment: dict[str, str]) -> Imported:
    said = " ".join(words)
    if "ROUTING_ALGORITHM" in environment or any(name.startswith("AIBRIX_") for name in environment):
        return aibrix.read(words, environment)
    if "gateway-plugin" in said or "--grpc-bind-address" in said:
        return aibrix.read(words, environment)
    if "--routing-logic" in said or "vllm_router.app" in said or "--static-backends" in said:
        return _with(routers.PRODUCTION_STACK, words, "vLLM's production stack router")
    if "--pool-name" in said or "--grpc-health-port" in said or "--endpoint-selector" in said:
        return epp.drop_in(words)
    if "--worker-urls" in said or "--policy" in said or "--cache-threshold" in said:
        return _with(routers.RUST, words, "a router of SGLang's kind")
    raise NotUnderstood(
        "this is no command line that is known here: expected one of the reference endpoint picker (--pool-name), "
        "AIBrix's gateway plugin (ROUTING_ALGORITHM=...), SGLang's or vLLM's router (--policy, --worker-urls) or "
        "vLLM's production stack (--routing-logic)"
    )


def _with(table: Table, words: Sequence[str], source: str) -> Imported:
    imported = Imported(source)
    # What is in front is the program, which may have flags of its own: python -m module.
    first = next((number for number, word in enumerate(words) if word.startswith("--")), 0)
    words = words[first:]
    apply(table, words, imported)
    return imported


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
