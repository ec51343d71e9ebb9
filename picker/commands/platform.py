"""`picker platform`: the documents that an orchestration platform and pickers exchange."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

app = typer.Typer(no_args_is_help=True, help="Orders of an orchestration platform, and the state that it is told.")


@app.command()
def schema(
    state: Annotated[bool, typer.Option("--state", help="Of the state instead of the orders.")] = False,
) -> None:
    """Print the JSON Schema of the orders, or of the state."""
    from picker.platform.orders import Orders
    from picker.platform.state import State
    from picker.settings.reference import json_schema

    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema(State if state else Orders))).decode())


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Orders, as YAML or JSON.", dir_okay=False)],
) -> None:
    """Say whether orders would be followed, or what is wrong with them."""
    from picker.config_files import ConfigError, load
    from picker.platform.orders import SECTIONS, Orders

    try:
        orders = load(file, Orders)
    except ConfigError as error:
        typer.echo(f"picker: {error}", err=True)
        sys.exit(2)
    given = [name for name in SECTIONS if getattr(orders, name) not in (None, "")]
    typer.echo(f"{file.name} would be followed: {', '.join(given) or 'nothing'} given")
