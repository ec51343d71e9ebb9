"""The command line: `python -m benchmarks.engines --worker URL ... --model NAME --tokenizer FOLDER`."""

from __future__ import annotations

import asyncio
import json as json_
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import typer
import yaml
from rich.progress import track

from picker import envoy_config
from picker.prompts.chain import INDEX_TOKENS
from picker.simulation.process import DidNotStart, Process, free_ports
from picker.simulation.stack import ENVOY_FLAGS, envoy_binary
from picker.simulation.valkey import ValkeyFailed, ValkeyServer

_CONVERSATIONS = 12
_MOST_MESSAGES = 24
_WORDS = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
)
_ENOUGH = 0.95
_PREDICTED = "picker_predicted_hit_tokens_total"


@dataclass(frozen=True, slots=True)
class Target:
    """The engines under test."""

    workers: Sequence[str]
    model: str
    tokenizer: Path


@dataclass(slots=True)
class Chat:
    """A conversation, and who has served it."""

    messages: list[dict[str, str]] = field(default_factory=list)
    served: set[str] = field(default_factory=set)


class Exchange(msgspec.Struct, frozen=True):
    """One request: tokens of the prompt, predicted to be cached, and found cached by the engine."""

    prompt: int
    predicted: int
    cached: int

    @property
    def is_right(self) -> bool:
        """Whether the prediction is short by less than an index block, and never more than there is."""
        return 0 <= self.cached - self.predicted < INDEX_TOKENS


def main(
    worker: Annotated[list[str], typer.Option(help="URL of an engine; repeatable.")],
    model: Annotated[str, typer.Option(help="The model's name.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder with its tokenizer.json.", exists=True, file_okay=False)],
    requests: Annotated[int, typer.Option(help="How many requests to send.", min=1)] = 250,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
) -> None:
    """Compare predicted hits with what real engines find in their caches."""
    try:
        exchanges, moved = asyncio.run(_run(Target(worker, model, tokenizer), requests))
    except (DidNotStart, ValkeyFailed) as error:
        typer.echo(f"benchmark: {error}", err=True)
        raise typer.Exit(2) from None
    right = sum(exchange.is_right for exchange in exchanges)
    typer.echo(f"{right} of {len(exchanges)} predictions are right ({right / len(exchanges):.1%})")
    for name in ("prompt", "cached", "predicted"):
        typer.echo(f"{name + ' tokens':18}{sum(getattr(exchange, name) for exchange in exchanges):>12,}")
    typer.echo(f"conversations that moved to another worker: {moved}")
    if json:
        json.write_bytes(msgspec.json.encode(exchanges))
    raise typer.Exit(0 if right >= _ENOUGH * len(exchanges) else 1)


async def _run(target: Target, requests: int) -> tuple[list[Exchange], int]:
    rng, chats, moved, failed = random.Random(1), [Chat() for _ in range(_CONVERSATIONS)], 0, 0
    exchanges = []
    async with _picked(target) as (url, metrics), httpx.AsyncClient(timeout=120) as client:
        for _ in track(range(requests), "asking"):
            chat = rng.choice(chats)
            if len(chat.messages) >= _MOST_MESSAGES:
                moved += len(chat.served) > 1
                chat.messages, chat.served = [], set()
            before = await _predicted(client, metrics)
            try:
                usage = await _turn(client, url, target.model, chat, rng)
            except httpx.HTTPError:
                # An engine that is being restarted loses what it was doing; this conversation begins anew.
                failed, chat.messages, chat.served = failed + 1, [], set()
                continue
            predicted = await _predicted(client, metrics) - before
            exchanges.append(Exchange(usage["prompt_tokens"], predicted, usage["cached_tokens"]))
    typer.echo(f"requests that failed: {failed}")
    return exchanges, moved + sum(len(chat.served) > 1 for chat in chats)


async def _turn(client: httpx.AsyncClient, url: str, model: str, chat: Chat, rng: random.Random) -> dict[str, int]:
    chat.messages.append({"role": "user", "content": " ".join(rng.choices(_WORDS, k=60))})
    body = {"model": model, "messages": chat.messages, "max_tokens": 20, "temperature": 0}
    response = await client.post(f"{url}/v1/chat/completions", json=body)
    response.raise_for_status()
    answer = response.json()
    chat.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
    chat.served.add(response.headers["x-picker-endpoint"])
    details = answer["usage"].get("prompt_tokens_details")
    if details is None:
        raise DidNotStart("the engine does not tell cached tokens; start vLLM with --enable-prompt-tokens-details")
    return {"prompt_tokens": answer["usage"]["prompt_tokens"], "cached_tokens": details["cached_tokens"] or 0}


async def _predicted(client: httpx.AsyncClient, metrics: str) -> int:
    text = (await client.get(metrics)).text
    return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines() if line.startswith(_PREDICTED))


@asynccontextmanager
async def _picked(target: Target) -> AsyncIterator[tuple[str, str]]:
    """Valkey, agent, picker and Envoy before the engines: where clients come in, and the picker's metrics."""
    listen, admin, grpc, metrics = (f"127.0.0.1:{port}" for port in free_ports(4))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="picker-engines-")))
        valkey = await stack.enter_async_context(ValkeyServer())
        agent = {"redis": valkey.url, "workers": [{"url": url} for url in target.workers]}
        picker = {
            "listen": grpc,
            "metrics": metrics,
            "redis": valkey.url,
            "reveal_endpoint": True,
            "tokenizers": {target.model: str(target.tokenizer.resolve())},
        }
        (folder / "agent.yaml").write_text(yaml.safe_dump(agent))
        (folder / "picker.yaml").write_text(yaml.safe_dump(picker))
        envoy = envoy_config.load("fail-open", listen=listen, admin=admin, picker=grpc)
        (folder / "envoy.json").write_text(json_.dumps(envoy))
        python = [sys.executable, "-m", "picker"]
        commands = {
            "agent": [*python, "agent", "--config", str(folder / "agent.yaml")],
            "picker": [*python, "serve", "--config", str(folder / "picker.yaml")],
            "envoy": [envoy_binary(), *ENVOY_FLAGS, "-c", str(folder / "envoy.json")],
        }
        processes = {name: Process(name, command, folder / f"{name}.log") for name, command in commands.items()}
        for process in processes.values():
            process.start()
            stack.push_async_callback(process.stop)
        ready = f"picker_workers_ready {float(len(target.workers))}"
        await processes["picker"].wait_until(lambda: _says(f"http://{metrics}/metrics", ready))
        await processes["envoy"].wait_until(lambda: _says(f"http://{admin}/ready", "LIVE"))
        await processes["envoy"].wait_until(lambda: _says(f"http://{listen}/v1/models", target.model))
        yield f"http://{listen}", f"http://{metrics}/metrics"


async def _says(url: str, text: str) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            return text in (await client.get(url)).text
        except httpx.HTTPError:
            return False


if __name__ == "__main__":
    typer.run(main)
