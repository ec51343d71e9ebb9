"""Redis as people run it: with a password, with TLS, behind sentinels, as a cluster. Real servers on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from picker.redisview.settings import RedisConfig
from picker.simulation.process import Process, free_ports
from picker.simulation.valkey import bundled_binary

HOST = "127.0.0.1"
INSTALLED = shutil.which("redis-server")
BINARIES = [path for path in (bundled_binary(), Path(INSTALLED) if INSTALLED else None) if path]


@dataclass
class Server:
    """One process; `arguments` are its configuration. It can be killed and started again, and frozen."""

    binary: Path
    folder: Path
    arguments: Sequence[str] = ()
    port: int = field(default_factory=lambda: free_ports(1)[0])
    is_sentinel: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "conf").write_text("\n".join([f"port {self.port}", f"dir {self.folder}", *self.arguments]))
        sentinel = ["--sentinel"] if self.is_sentinel else []
        command = [str(self.binary), str(self.folder / "conf"), *sentinel]
        self.process = Process(f"redis-{self.port}", command, self.folder / "log")

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        self.process.start()
        await self.process.wait_until(self.answers)

    async def answers(self) -> bool:
        """Whether it answers anything at all, be it that it wants a password."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return (await reader.read(1)) in (b"+", b"-")
        except OSError:
            return False
        finally:
            writer.close()

    async def ask(self, *command: str | int, **options: Any) -> Any:
        client = Redis(host=HOST, port=self.port, protocol=2, **options)
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()


@contextlib.asynccontextmanager
async def running(*servers: Server) -> AsyncIterator[None]:
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            server.process.kill()


PLAIN = ('save ""', f"bind {HOST}", "repl-diskless-sync-delay 0")


def plain(binary: Path, folder: Path, *arguments: str) -> Server:
    return Server(binary, folder, [*PLAIN, *arguments])


@dataclass
class Sentinels:
    """Two servers, one the replica of the other, and three sentinels that watch them."""

    servers: list[Server]
    sentinels: list[Server]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(sentinel.address for sentinel in self.sentinels)}/main"

    async def primary(self) -> Server:
        for sentinel in self.sentinels:
            with contextlib.suppress(RedisError, OSError):
                _, port = await sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
                return next(server for server in self.servers if server.port == int(port))
        raise AssertionError("no sentinel answers")

    async def is_complete(self) -> bool:
        """Whether all know of all: only then is there a majority to replace a primary."""
        for sentinel in self.sentinels:
            reply = await sentinel.ask("SENTINEL", "MASTER", "main")
            state = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
            state = {_text(name): _text(value) for name, value in state.items()}
            if (state["num-slaves"], state["num-other-sentinels"]) != ("1", str(len(self.sentinels) - 1)):
                return False
        return True


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@contextlib.asynccontextmanager
async def sentinels(binary: Path, folder: Path, options: Sequence[str] = ()) -> AsyncIterator[Sentinels]:
    first = plain(binary, folder / "first", *options)
    second = plain(binary, folder / "second", f"replicaof {HOST} {first.port}", *options)
    watch = (
        f"bind {HOST}",
        f"sentinel monitor main {HOST} {first.port} 2",
        "sentinel down-after-milliseconds main 500",
        "sentinel failover-timeout main 3000",
    )
    watchers = [Server(binary, folder / f"sentinel{n}", watch, is_sentinel=True) for n in range(3)]
    group = Sentinels([first, second], watchers)
    async with running(first, second, *watchers):
        await until(group.is_complete)
        yield group


@dataclass
class Cluster:
    """Three primaries with a third of the slots each."""

    nodes: list[Server]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(node.address for node in self.nodes[:2])}"

    async def is_up(self) -> bool:
        for node in self.nodes:
            info = await node.ask("CLUSTER", "INFO")
            text = info.get("cluster_state") if isinstance(info, dict) else info
            if b"cluster_state:ok" not in _bytes(text) and text != "ok":
                return False
        return True

    async def owner(self, slot: int) -> Server:
        for first, last, (_, port, *_), *_ in await self._slots():
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody has slot {slot}")

    async def move(self, slot: int, target: Server) -> None:
        """As `redis-cli --cluster reshard` does, for one slot."""
        source = await self.owner(slot)
        ids = {node.port: _text(await node.ask("CLUSTER", "MYID")) for node in (source, target)}
        await target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        await source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
        while keys := await source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            for key in keys:
                await source.ask("MIGRATE", HOST, target.port, key, 0, 5000)
        for node in (target, source, *self.nodes):
            await node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])

    async def _slots(self) -> Any:
        pipeline = Redis(host=HOST, port=self.nodes[0].port, protocol=2)
        try:
            pipeline.response_callbacks.clear()
            return await pipeline.execute_command("CLUSTER", "SLOTS")
        finally:
            await pipeline.aclose()


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@contextlib.asynccontextmanager
async def cluster(binary: Path, folder: Path, options: Sequence[str] = ()) -> AsyncIterator[Cluster]:
    # The bus has a port of its own, by default 10,000 above the other, which may be beyond the last one.
    buses, own = free_ports(3), ("cluster-enabled yes", "cluster-node-timeout 1000")
    nodes = [plain(binary, folder / f"node{n}", *own, f"cluster-port {bus}", *options) for n, bus in enumerate(buses)]
    group = Cluster(nodes)
    async with running(*nodes):
        bounds = [0, 5461, 10923, 16384]
        for number, node in enumerate(nodes):
            await node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            await node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            await nodes[0].ask("CLUSTER", "MEET", HOST, node.port, bus)
        await until(group.is_up)
        yield group


async def until(condition: Any, within_s: float = 40.0) -> None:
    """Waits until an asynchronous condition holds."""
    async with asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(RedisError, OSError):
                if await condition():
                    return
            await asyncio.sleep(0.05)


@dataclass
class Where:
    """As `ValkeyServer` for those who only want to know where it is."""

    url: str | RedisConfig
