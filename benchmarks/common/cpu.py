"""CPU time of a process, from Linux' /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# utime and stime, counted from the field after the command's name: that name may hold spaces and parentheses.
_UTIME, _STIME = 11, 12


def cpu_s(pid: int) -> float:
    """User and system seconds of all threads so far, in steps of 10 ms. Raises FileNotFoundError for a process gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S
