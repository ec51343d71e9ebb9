"""A simulated worker: to the outside a vLLM server with KV events, inside an engine that only pretends to compute.

python -m picker.simulation.worker --name w0 --port 8001 --kv-port 5557 --replay-port 5558
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn
import uvloop

from picker.prompts.tokenizer import BadTokenizer, ModelTokenizer
from picker.simulation.app import Api, Served
from picker.simulation.engine import Engine
from picker.simulation.faults import Faults
from picker.simulation.kv_publisher import KvFormat, KvPublisher
from picker.simulation.metrics import WorkerMetrics
from picker.simulation.profiles import PROFILES
from picker.simulation.realtime import RealTimeEngine
from picker.simulation.words import DEMO_TOKENIZER, NoWords, Words, load_words


class BadSettings(ValueError):
    """Settings that do not go together. The message says which and what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One worker. Ports that are 0 are chosen by the system; `num_blocks` None is what the profile's KV cache holds.

    `speed` divides all times. `max_num_queued_reqs` bounds running and waiting requests together, as vLLM's does.
    """

    name: str = "w0"
    host: str = "127.0.0.1"
    port: int = 0
    kv_port: int = 0
    replay_port: int = 0
    model: str = "tiny-llama"
    tokenizer: Path = DEMO_TOKENIZER
    adapters: tuple[str, ...] = ()
    profile: str = "demo"
    speed: float = 1.0
    block_size: int = 16
    num_blocks: int | None = None
    kv_format: KvFormat = KvFormat.MAP
    max_model_len: int = 16_384
    max_num_queued_reqs: int | None = None


class SimulatedWorker:
    """The worker in this process and event loop. Its endpoints are known as soon as it exists."""

    def __init__(self, settings: Settings | None = None):
        """Binds the sockets. Raises BadSettings, BadTokenizer, NoWords, OSError."""
        self.settings = settings = settings or Settings()
        tokenizer = ModelTokenizer.load(settings.tokenizer)
        words = load_words(settings.tokenizer)
        engine = _engine(settings, words)
        metrics = WorkerMetrics(settings.model, engine, settings.max_model_len, settings.adapters)
        self.publisher = KvPublisher(
            settings.host,
            port=settings.kv_port,
            replay_port=settings.replay_port,
            adapters=settings.adapters,
            kv_format=settings.kv_format,
        )
        try:
            self._listener = _listen(settings.host, settings.port)
        except OSError:
            self.publisher.close()
            raise
        self.publisher.topic = f"kv@{self.endpoint}@{settings.model}"
        self._engine = RealTimeEngine(
            engine, self.publisher, metrics, speed=settings.speed, max_queued=settings.max_num_queued_reqs
        )
        served = Served(
            worker=settings.name,
            model=settings.model,
            root=str(settings.tokenizer),
            adapters=settings.adapters,
            max_model_len=settings.max_model_len,
            vocabulary_size=words.vocabulary_size,
        )
        api = Api(served, tokenizer, self._engine, self.publisher, metrics, Faults(self._engine, self.publisher))
        self._server = _Server(api.app())
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> str:
        """`host:port` of the HTTP server."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        """Returns once requests are served."""
        self._running = asyncio.get_running_loop().create_task(self.run())
        ready = asyncio.ensure_future(self._server.ready.wait())
        await asyncio.wait((ready, self._running), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._running.done():
            await self._running

    async def stop(self) -> None:
        """End all answers, then everything else; returns when nothing is left."""
        self._stopping.set()
        if self._running:
            await self._running
        else:
            self._listener.close()
            self.publisher.close()

    def ask_to_stop(self) -> None:
        """Make `run` end."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until asked to stop."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._engine.run()), group.create_task(self.publisher.run())]
                serving = group.create_task(self._server.serve([self._listener]))
                await self._stopping.wait()
                self._engine.abort_all()
                self._server.should_exit = True
                await serving
                for task in tasks:
                    task.cancel()
        finally:
            self.publisher.close()


class _Server(uvicorn.Server):
    """uvicorn without its logs and signal handlers, which belong to the process and not to one of its servers."""

    def __init__(self, app: object):
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _engine(settings: Settings, words: Words) -> Engine:
    if settings.speed <= 0:
        raise BadSettings(f"speed {settings.speed} would never end a step; give a number above 0")
    profile = PROFILES[settings.profile]
    num_blocks = settings.num_blocks or profile.kv_tokens // settings.block_size
    capacity = num_blocks * settings.block_size
    if settings.max_model_len > capacity:
        raise BadSettings(
            f"max_model_len {settings.max_model_len} is more than the {capacity} tokens that {num_blocks} blocks hold; "
            "lower --max-model-len or raise --num-blocks"
        )
    return Engine(profile, settings.block_size, num_blocks, words.tokens)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


async def _serve(settings: Settings) -> None:
    worker = SimulatedWorker(settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, worker.ask_to_stop)
    sockets = {"http": worker.endpoint, "kv": worker.publisher.endpoint, "replay": worker.publisher.replay_endpoint}
    structlog.get_logger().info("simulated worker starts", worker=settings.name, **sockets)
    await worker.run()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m picker.simulation.worker",
        description="A simulated worker: vLLM's OpenAI server, metrics and KV events, without a model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = Settings()
    add = parser.add_argument
    add("--name", default=default.name, help="sent as the header x-worker with every answer")
    add("--host", default=default.host, help="address to bind all sockets to")
    add("--port", type=int, default=default.port, help="HTTP; 0: any free one")
    add("--kv-port", type=int, default=default.kv_port, help="ZMQ PUB socket for KV events; 0: any free one")
    add("--replay-port", type=int, default=default.replay_port, help="ZMQ ROUTER socket for replay; 0: any free one")
    add("--model", default=default.model, help="name of the served model")
    add("--tokenizer", type=Path, default=default.tokenizer, help="folder with tokenizer.json and chat template")
    add("--adapter", dest="adapters", action="append", default=[], help="LoRA adapter to serve; may be repeated")
    add("--profile", choices=sorted(PROFILES), default=default.profile, help="how long steps take, and the KV cache")
    add("--speed", type=float, default=default.speed, help="divides all times")
    add("--block-size", type=int, default=default.block_size, help="tokens in a KV block")
    add("--num-blocks", type=int, default=default.num_blocks, help="KV blocks; None: as the profile says")
    add("--kv-format", type=KvFormat, choices=list(KvFormat), default=default.kv_format, help="form of KV events")
    add("--max-model-len", type=int, default=default.max_model_len, help="context length in tokens")
    add("--max-num-queued-reqs", type=int, default=default.max_num_queued_reqs, help="answer 503 beyond; None: never")
    return parser


def main() -> None:
    """The command line."""
    parser = _arguments()
    values = vars(parser.parse_args())
    try:
        uvloop.run(_serve(Settings(**values | {"adapters": tuple(values["adapters"])})))
    except (BadSettings, BadTokenizer, NoWords, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
