"""glibc's allocator, set up for a process through which large bodies pass."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD_BYTES = 32 << 20
_KEPT_BYTES = 128 << 20


def keep_large_blocks() -> None:
    """Lets memory of large bodies be used again. Elsewhere than under glibc nothing happens.

    By default each block of 128 KiB and more may be mapped for itself, and what is freed at the heap's end goes back to
    the kernel: every body of 256 KB then faults its pages in anew, a tenth of what the request costs.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
