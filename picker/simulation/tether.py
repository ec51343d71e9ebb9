"""Ties a child process to its parent: the kernel kills it when the parent ends, however that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Runs in the child between fork and the program. Not a preexec_fn: that is Python in a fork of a process that has
# gRPC's threads, which may hold locks that nobody in the child will ever release.
# 1 is PR_SET_PDEATHSIG. Python ignores SIGPIPE, and what is ignored stays so in the program.
_PRELUDE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent ended first")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def tethered(command: Sequence[str]) -> list[str]:
    """The command to start instead; it has the same process id. Nothing changes where the kernel is not Linux.

    To be started from the main thread: the kernel counts the end of the starting thread as the parent's.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _PRELUDE, str(os.getpid()), *command]
