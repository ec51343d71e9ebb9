"""Memory that a process has, from Linux' /proc."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """What is in RAM now. Raises FileNotFoundError for a process gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
