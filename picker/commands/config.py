"""`picker config`: checks a configuration, describes all settings, and brings one over from another router."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

app = typer.Typer(
    no_args_is_help=True, help="Check a configuration, print its schema or reference, import another router's."
)

_AGENT = typer.Option("--agent", help="Of `picker agent` instead of `picker serve`.")


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="YAML file.", dir_okay=False)] = None,
    agent: Annotated[bool, _AGENT] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema instead.")] = False,
    only_set: Annotated[bool, typer.Option("--only-set", help="Leave out what is at its default.")] = False,
) -> None:
    """Validate a file and explain every setting: its value, where that comes from, what it means."""
    from picker.config import Config
    from picker.config_checks import BadSetting
    from picker.config_checks import check as check_values
    from picker.config_files import ConfigError, load
    from picker.settings.explain import explained

    type: Any = _agent_config() if agent else Config
    if schema:
        return print_schema(type)
    if file is None:
        _fail("say which file")
    try:
        config = load(file, type)
        if isinstance(config, Config):
            check_values(config)
    except ConfigError as error:
        _fail(str(error))
    except BadSetting as error:
        _fail(f"{file.name}: {error}")
    for line in explained(config, file.read_text(), file.name, only_set=only_set):
        typer.echo(line)


@app.command()
def schema(agent: Annotated[bool, _AGENT] = False) -> None:
    """Print the JSON Schema of the file, for editors and for checks before it is applied."""
    from picker.config import Config

    print_schema(_agent_config() if agent else Config)


@app.command()
def reference() -> None:
    """Print docs/configuration.md: every setting of `picker serve` and `picker agent`."""
    from picker.config import Config
    from picker.reload import LIVE
    from picker.settings.page import page

    typer.echo(page(Config, _agent_config(), LIVE), nl=False)


@app.command("import", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def import_(
    source: Annotated[
        list[str],
        typer.Argument(help="An EndpointPickerConfig file, or behind `--` the command line of another router."),
    ],
    output: Annotated[Path | None, typer.Option(help="Write it here instead of printing it.", dir_okay=False)] = None,
) -> None:
    """Read another router's configuration, write ours, and say what differs.

    Understood are EndpointPickerConfig files (llm-d, Gateway API Inference Extension) and the command lines of the
    reference endpoint picker, AIBrix's gateway plugin (with its environment as NAME=VALUE in front), SGLang's router,
    vLLM's router and vLLM's production stack.
    """
    from picker.migrate.sources import NotUnderstood, read

    try:
        imported = read(source)
    except NotUnderstood as error:
        _fail(str(error))
    text = imported.text()
    if output:
        output.write_text(text)
        typer.echo(f"{output}: written, with {len(imported.notes)} notes at its head", err=True)
    else:
        typer.echo(text, nl=False)


def print_schema(type: Any) -> None:
    """Prints the JSON Schema of a settings or document type."""
    from picker.settings.reference import json_schema

    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema(type))).decode())


def _agent_config() -> Any:
    try:
        from picker.agent.config import AgentConfig
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed; the agent's parts come with: pip install 'envoy-picker[agent]'")
    return AgentConfig


def _fail(message: str) -> NoReturn:
    typer.echo(f"picker: {message}", err=True)
    sys.exit(2)
