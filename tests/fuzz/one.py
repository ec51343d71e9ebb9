"""One target, guided by coverage: `python -m tests.fuzz.one TARGET SECONDS CORPUS`. Ends with the first defect."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["picker"]):
    from tests.fuzz.targets import TARGETS


def main(name: str, seconds: str, corpus: str) -> None:
    target = TARGETS[name]
    folder = Path(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=20",
        "-rss_limit_mb=1500",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}-", str(folder)], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
