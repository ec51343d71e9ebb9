"""Structured logs: one line for each change of state, never one for each request."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Literal, TextIO, cast

import structlog

_threshold = logging.INFO


def set_level(level: str) -> None:
    """From now on, and for loggers that are in use already: debug, info, warning or error."""
    global _threshold
    _threshold = logging.getLevelNamesMapping()[level.upper()]


def _is_wanted(_: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) < _threshold:
        raise structlog.DropEvent
    return event


def _on_one_line(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Names from outside must not begin a line, or paint one, that nobody logged."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = "".join(each if each.isprintable() else repr(each)[1:-1] for each in value)
    return event


class _Lossy:
    """A stream of lines. One that cannot be written, on a full disk or to a reader that is gone, is lost: whoever logs
    is in the middle of something that matters more.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure(log_format: Literal["console", "json"], level: str = "info") -> None:
    """Sets up structlog for this process; logs go to standard error.

    Events have names in snake_case, for alerts to match; what follows from one stands in `consequence`.
    """
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    set_level(level)
    structlog.configure(
        processors=[
            _is_wanted,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            _on_one_line,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lossy(sys.stderr))),
        cache_logger_on_first_use=True,
    )
