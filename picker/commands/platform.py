"""`picker platform`: the documents that an orchestration platform and pickers exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from picker.commands.client import fail
from picker.commands.config import print_schema

app = typer.Typer(no_args_is_help=True, help="Orders of an orchestration platform, and the state that it is told.")


@app.command()
def schema(
    state: Annotated[bool, typer.Option("--state", help="Of the state instead of the orders.")] = False,
) -> None:
    """Print the JSON Schema of the orders, or of the state."""
    from picker.platform.orders import Orders
    from picker.platform.state import State

    print_schema(State if state else Orders)


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
        fail(str(error))
    given = [name for name in SECTIONS if getattr(orders, name) not in (None, "")]
    typer.echo(f"{file.name} would be followed: {', '.join(given) or 'nothing'} given")
