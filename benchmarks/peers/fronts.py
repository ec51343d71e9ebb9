"""Who is compared: Envoy alone, Envoy with Picker, and the routers of others, as far as they are installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from benchmarks.extproc.contenders import NONE, Contender, Responder

ALONE = "Envoy alone"
PICKERS: dict[str, Contender] = {
    ALONE: NONE,
    "Envoy + Picker": Contender("picker", Responder.PICKER),
    "Envoy + Picker, full duplex": Contender("picker, full duplex", Responder.PICKER, envoy="full-duplex"),
    "Envoy + Picker, grpcio": Contender("picker, grpcio", Responder.PICKER, picker={"transport": "grpcio"}),
}
"""Behind one Envoy, with everything on that a picker has by default."""


@dataclass(frozen=True, slots=True)
class Router:
    """A router from PyPI. `command` starts it: on a host and port, for endpoints, with a second port for metrics."""

    label: str
    package: str
    command: Callable[[str, str, Sequence[str], str], list[str]]

    @property
    def version(self) -> str | None:
        """Of what is installed; None where nothing is."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


def _launch(module: str, *first: str) -> Callable[[str, str, Sequence[str], str], list[str]]:
    def command(host: str, port: str, endpoints: Sequence[str], metrics_port: str) -> list[str]:
        urls = [f"http://{endpoint}" for endpoint in endpoints]
        # Their defaults but for these: no line for each request, and no refusals at the rates that are meant here.
        settings = ("--log-level", "error", "--max-concurrent-requests", "4096", "--prometheus-port", metrics_port)
        where = ("--host", host, "--port", port, "--worker-urls", *urls)
        return [sys.executable, "-m", module, *first, *where, "--policy", "cache_aware", *settings]

    return command


ROUTERS = (
    Router("vllm-router", "vllm-router", _launch("vllm_router.launch_router")),
    Router("smg", "smg", _launch("smg.cli", "launch")),
)
"""With their cache-aware policy, which is their default."""
