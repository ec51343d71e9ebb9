"""What the command line says, as values: profiles, faults, levels, amounts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from picker.config_files import ConfigError, load
from picker.simulation.discrete.cluster import Fault
from picker.simulation.profiles import PROFILES, Profile


class BadOption(ValueError):
    """An option that makes no sense. The message says what would."""


def profile(name: str, file: Path | None) -> Profile:
    """A profile of ours, or of a YAML or JSON file that maps names to their constants. Raises BadOption."""
    try:
        known: Mapping[str, Profile] = {**PROFILES, **(load(file, dict[str, Profile]) if file else {})}
    except ConfigError as error:
        raise BadOption(str(error)) from None
    if name not in known:
        raise BadOption(f"there is no profile {name!r}; there are: {', '.join(known)}")
    return known[name]


def fault(text: str, workers: int) -> Fault:
    """`worker=3,at=60,for=30`: it dies and comes back; with `,slow=4` it takes four times as long. Raises BadOption."""
    try:
        values = {key: float(value) for key, value in (part.split("=") for part in text.split(","))}
        worker, factor = int(values.pop("worker")), values.pop("slow", None)
        made = Fault(worker, values.pop("at"), values.pop("for"), factor)
    except (KeyError, ValueError):
        raise BadOption(f"--fault {text}: write worker=3,at=60,for=30 or worker=3,at=60,for=30,slow=4") from None
    if values or not 0 <= worker < workers or min(made.at, made.seconds, factor or 1.0) < 0:
        raise BadOption(f"--fault {text}: workers are 0 to {workers - 1}; times are seconds from 0 on")
    return made


def levels(text: str) -> tuple[float, ...]:
    """`95` or `90,95,99`: per cent of the requests, lowest first. Raises BadOption."""
    try:
        found = tuple(sorted({float(part) / 100 for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or not 0 < found[0] <= found[-1] < 1:
        raise BadOption(f"--level {text}: write per cents above 0 and below 100, as 95 or 90,95,99")
    return found
