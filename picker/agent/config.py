"""The settings of `picker agent`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from picker.config_files import ConfigError
from picker.fleet.endpoints import canonical
from picker.redisview.settings import RedisConfig

_PORTS = {"http": 80, "https": 443}
Seconds = Annotated[float, Meta(gt=0)]


class WorkerConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """One worker: an engine, or one data-parallel rank of it.

    `url` is where the agent reaches the server, `endpoint` (default: host and port of `url`) where Envoy does, `name`
    (default: endpoint, and rank if there is one) what the worker is called. `rank` is to be set if the server has
    several; each is a worker of its own. `kv_events` and `kv_replay` are ZMQ endpoints to connect to, or with `*` as
    the host to bind for an engine that connects; by default, what the server says of itself. `engine`: its kind, by
    default what /v1/models says. `model`: whose numbers count on a metrics page of several models. `gpu`: the kind,
    in the operator's own words. `api_key_file`: holds the key that /v1/models wants.
    """

    url: str
    endpoint: str = ""
    name: str = ""
    rank: Annotated[int, Meta(ge=0)] | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    engine: Literal["auto", "vllm", "sglang", "trtllm", "other"] = "auto"
    model: str = ""
    gpu: str = ""
    api_key_file: str = ""
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Fills in what follows from the URL. Raises ConfigError."""
        self.endpoint = _canonical(self.endpoint or _endpoint(self.url))
        self.name = self.name or (self.endpoint if self.rank is None else f"{self.endpoint}/{self.rank}")
        if self.kv_replay and not self.kv_events:
            raise ConfigError("kv_replay is set without kv_events; set both, or none to ask the server")

    def headers(self) -> dict[str, str]:
        """To send with each request. Raises ConfigError."""
        if not self.api_key_file:
            return {}
        try:
            return {"authorization": f"Bearer {Path(self.api_key_file).read_text().strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_key_file {self.api_key_file} of {self.name}: {error}") from None


class AgentConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """`redis`: URL. `pool`: whose workers these are. `probe_interval_s`: how often each engine is asked how it is."""

    redis: str | RedisConfig
    pool: str = "default"
    workers: Annotated[list[WorkerConfig], Meta(min_length=1)]
    probe_interval_s: Seconds = 1.0
    stall_after_s: Seconds = 10.0

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        names = [worker.name for worker in self.workers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two workers are called {twice[0]}; give them a name or a rank of their own")


def _canonical(endpoint: str) -> str:
    found = canonical(endpoint.replace("localhost:", "127.0.0.1:"))
    if found is None:
        raise ConfigError(f"{endpoint} is no address that Envoy can be told; set endpoint to the worker's ip:port")
    return found


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise ConfigError(f"{url} is not a URL such as http://10.0.0.5:8000") from None
    if not parts.hostname:
        raise ConfigError(f"{url} names no host; write http://10.0.0.5:8000")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"
