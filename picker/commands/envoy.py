"""`picker envoy`: prints a complete Envoy configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from picker import envoy_config


def envoy(
    name: Annotated[str, typer.Argument(help="Which one; --list shows them.")] = envoy_config.NAMES[0],
    listen: Annotated[str, typer.Option(help="Where clients come in, as IP:PORT.")] = envoy_config.LISTEN,
    admin: Annotated[str, typer.Option(help="Envoy's admin interface, as IP:PORT.")] = envoy_config.ADMIN,
    picker: Annotated[
        str, typer.Option(help="Where the picker listens, as HOST:PORT; of several processes all, with commas between.")
    ] = envoy_config.PICKER,
    output: Annotated[Path | None, typer.Option(help="Write it here instead of printing it.", dir_okay=False)] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the configurations.")] = False,
) -> None:
    """Print a complete, commented Envoy configuration for these addresses."""
    if show_list:
        for one in envoy_config.NAMES:
            typer.echo(f"{one:14}{envoy_config.summary(one)}")
        return
    try:
        text = envoy_config.text(name, listen=listen, admin=admin, picker=picker)
        if output:
            output.write_text(text)
        else:
            typer.echo(text, nl=False)
    except (envoy_config.BadAddress, OSError) as error:
        typer.echo(f"picker: {error}", err=True)
        raise typer.Exit(2) from None
