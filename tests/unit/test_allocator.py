"""Memory of large bodies is used again."""

import resource
import subprocess
import sys

_SCRIPT = """
import resource, sys
from picker.allocator import keep_large_blocks
if sys.argv[1] == "kept":
    keep_large_blocks()
for _ in range(50):
    pieces = [bytes(2_000_000) for _ in range(4)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_blocks_do_not_fault_their_pages_in_each_time() -> None:
    pages = 50 * 4 * 2_000_000 // resource.getpagesize()
    plain, kept = faults("plain"), faults("kept")
    # On another C library nothing changes.
    assert kept < plain / 2 or plain < pages / 10
