"""One target, guided by coverage: `python -m tests.fuzz.one TARGET CORPUS SECONDS`. Ends with the first defect.

CORPUS is a folder of inputs, to which those are added that cover more.
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["picker"]):
    from tests.fuzz.targets import TARGETS


def main(name: str, corpus: str, seconds: str) -> None:
    options = [
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=20",
        "-rss_limit_mb=1500",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={corpus}-", corpus], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
