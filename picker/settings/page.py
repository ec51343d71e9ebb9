"""docs/configuration.md, made from the structs that hold the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from picker.settings.reference import REQUIRED, Setting, settings_of, summary
from picker.settings.values import shown

_HEAD = """\
# Configuration

Every setting of the two configuration files. Made by `picker config reference`; do not edit.

`picker config check FILE` validates a file and explains each value, `picker config schema` prints its JSON Schema,
`picker config import` brings over another router's configuration. `picker serve --config FILE` reads its file again
when it changes, or on SIGHUP: settings marked *live* take effect at once, the others at the next start, and the log
says which. A file that is wrong changes nothing.
"""


def page(serve: type[Any], agent: type[Any], live: frozenset[str]) -> str:
    """The whole page. `live`: settings of the picker that take effect without a restart."""
    parts = [_HEAD, *_section("`picker serve`", serve, live), *_section("`picker agent`", agent, frozenset())]
    return "\n".join(parts)


def _section(title: str, struct: type[Any], live: frozenset[str]) -> Iterator[str]:
    yield f"## {title}\n\n{summary(struct)}\n"
    yield "| setting | type | default | meaning |\n|---|---|---|---|"
    for setting in settings_of(struct):
        mark = " *Live.*" if setting.path in live else ""
        yield f"| `{setting.path}` | {setting.type} | {_default(setting)} | {_cell(setting.meaning)}{mark} |"
    yield ""


def _default(setting: Setting) -> str:
    if setting.default is REQUIRED:
        return "*required*"
    if setting.is_group and setting.default is not None:
        return "as below" if setting.default != () else "`[]`"
    return f"`{_cell(shown(setting.default))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
