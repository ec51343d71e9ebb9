"""One thing that is wrong."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.Enum):
    """How much it matters, worst first."""

    ERROR = "error"
    """Requests fail, go to the wrong worker, or go where a client says."""
    WARNING = "warning"
    """They will, under load or when a part is gone."""
    ADVICE = "advice"
    """It works, at a price."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault. `check`: stable name of what was checked. `fix`: what to do, or the lines of YAML to paste."""

    check: str
    severity: Severity
    where: str
    what: str
    causes: str
    fix: str
