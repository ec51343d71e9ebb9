"""Options that several commands have in common: the fields of a dataclass, annotated as typer wants them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def taking(group: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function whose first argument is such a group: it has the group's options after its own."""
    shared = inspect.signature(group, eval_str=True).parameters

    def command_of(function: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()

        @functools.wraps(function)
        def command(**options: Any) -> None:
            function(group(**{name: options.pop(name) for name in shared}), **options)

        # What typer makes options of.
        command.__signature__ = inspect.Signature([*own, *shared.values()])  # type: ignore[attr-defined]
        return command

    return command_of
