"""`picker doctor`: names what is wrong between Envoy and the picker, what it causes and how it is mended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from picker.doctor.finding import Finding, Severity

_ORDER = list(Severity)
_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.ADVICE: "bold cyan"}


def doctor(
    admin: Annotated[str, typer.Option(help="A running Envoy's admin interface.")] = "http://127.0.0.1:9901",
    config: Annotated[
        Path | None,
        typer.Option(help="A bootstrap or a saved /config_dump instead of a running Envoy.", dir_okay=False),
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="The picker's metrics; not read with --config.")
    ] = "http://127.0.0.1:9090",
    cluster: Annotated[
        str | None, typer.Option(help="The picker's cluster, where Envoy has other ext_proc filters as well.")
    ] = None,
    redis: Annotated[str | None, typer.Option(help="Check this Redis (a URL) instead of Envoy.")] = None,
    pool: Annotated[str, typer.Option(help="With --redis: the pool that agents should have published.")] = "default",
    seconds: Annotated[float, typer.Option(help="Time between two readings of the counters.", min=0.0, max=60.0)] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
) -> None:
    """Find what is wrong with Envoy's or Redis' set-up, what it causes, and the fix. Exits with 1 if anything is."""
    from picker.doctor.examine import CannotExamine, examine_envoy, examine_file
    from picker.doctor.redis import examine_redis
    from picker.redisview.url import BadRedisUrl

    try:
        if redis:
            findings = asyncio.run(examine_redis(redis, pool))
        elif config:
            findings = examine_file(config, cluster)
        else:
            findings = examine_envoy(admin.rstrip("/"), metrics.rstrip("/"), cluster, seconds)
    except (CannotExamine, BadRedisUrl) as error:
        typer.echo(f"picker: {error}", err=True)
        raise typer.Exit(2) from None
    findings.sort(key=lambda finding: _ORDER.index(finding.severity))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        _print(findings)
    if any(finding.severity is not Severity.ADVICE for finding in findings):
        raise typer.Exit(1)


def _print(findings: Sequence[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(Text(f"{finding.severity.value}: ", _STYLE[finding.severity]) + Text(finding.what, "bold"))
        for label, text in (("where", finding.where), ("causes", finding.causes), ("fix", finding.fix)):
            console.print(Text(_indented(label, text)))
        console.print()
    console.print(f"{len(findings)} found." if findings else "Nothing wrong.")


def _indented(label: str, text: str) -> str:
    first, *more = text.splitlines()
    if more:
        return "\n".join([f"  {label}:", *(f"    {line}" for line in text.splitlines())])
    return f"  {label + ':':8}{first}"
