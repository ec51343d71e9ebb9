"""Structured logs: one line for each change of state, never one for each request."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(log_format: Literal["console", "json"]) -> None:
    """Sets up structlog for this process; logs go to standard error.

    Events have names in snake_case, for alerts to match; what follows from one stands in `consequence`.
    """
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
