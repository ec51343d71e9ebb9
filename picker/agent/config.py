"""The settings of `picker agent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from picker.config_files import ConfigError
from picker.fleet.endpoints import canonical
from picker.redisview.settings import RedisConfig
from picker.settings.values import shown

_PORTS = {"http": 80, "https": 443}
Seconds = Annotated[float, Meta(gt=0)]


class WorkerConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """One worker: an engine, or one data-parallel rank of it.

    url: where the agent reaches the server.
    endpoint: where Envoy does, as ip:port; by default host and port of `url`.
    name: what the worker is called; by default its endpoint, and rank if there is one.
    rank: to be set if the server has several; each is a worker of its own.
    kv_events, kv_replay: ZMQ endpoints to connect to, or with `*` as the host to bind for an engine that connects; by
    default, what the server says of itself.
    engine: its kind, by default what /v1/models says.
    model: whose numbers count on a metrics page of several models.
    gpu: the kind, in the operator's own words.
    api_key_file: holds the key that /v1/models wants.
    tokenizer: the folder of the model's tokenizer, where the agent cannot read the one that the server names.
    draining: gets nothing new; what it has may end.
    labels: what the picker's profiles, requirement_headers and failure_domain go by, such as zone: a.
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
    tokenizer: str = ""
    draining: bool = False
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


class PodWorkers(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What holds for all pods, as in `WorkerConfig`.

    engine: its kind, by default what /v1/models says.
    kv_events, kv_replay: ZMQ endpoints, with `{ip}` where the pod's address goes.
    gpu: the kind, in the operator's own words.
    api_key_file: holds the key that /v1/models wants.
    """

    engine: Literal["auto", "vllm", "sglang", "trtllm", "other"] = "auto"
    kv_events: str | None = None
    kv_replay: str | None = None
    gpu: str = ""
    api_key_file: str = ""


class KubernetesConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """Pods with certain labels are workers.

    selector: the labels, as kubectl takes them.
    port: of each worker, at its pod's address.
    namespace: by default that of the agent's own pod.
    scheme: of the workers' servers.
    labels: from worker labels to the pod labels that they are taken from.
    worker: what else is to be said of each.
    relist_s: all pods are listed anew so often, in case a change was missed.
    kubeconfig: a file, for an agent that does not run in the cluster.
    """

    selector: Annotated[str, Meta(min_length=1)]
    port: Annotated[int, Meta(gt=0, lt=65536)]
    namespace: str = ""
    scheme: Literal["http", "https"] = "http"
    labels: dict[str, str] = {}
    worker: PodWorkers = PodWorkers()
    relist_s: Annotated[int, Meta(gt=0)] = 300
    kubeconfig: str = ""


class AgentConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings of `picker agent`. Workers are given by name, found, or both; all that are found count.

    redis: URL, or one with passwords and certificates in files.
    pool: whose workers these are; the same as the picker's.
    workers: whom to tell of.
    workers_file: a list like `workers`, read again when it changes.
    kubernetes: pods that are workers.
    probe_interval_s: how often each engine is asked how it is.
    stall_after_s: an engine that has work and makes no progress for so long is not ready.
    listen: the agent's own /health and /metrics, "" for none.
    max_workers: of all that are found; the rest is left out, and the log says so.
    offer_tokenizers: whether pickers get the models' tokenizer files from here, where they can be read.
    tokenizer_cache: where they are looked for if a server calls its model by a name; Hugging Face's by default.
    """

    redis: str | RedisConfig
    pool: str = "default"
    workers: list[WorkerConfig] = []
    workers_file: str = ""
    kubernetes: KubernetesConfig | None = None
    listen: str = "127.0.0.1:9109"
    offer_tokenizers: bool = True
    tokenizer_cache: str = ""
    probe_interval_s: Seconds = 1.0
    stall_after_s: Seconds = 10.0
    max_workers: Annotated[int, Meta(gt=0)] = 1000

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not (self.workers or self.workers_file or self.kubernetes):
            raise ConfigError("no workers: set workers, workers_file or kubernetes")
        check_names(self.workers)
        if self.listen:
            address(self.listen)


def tokenizer_cache(configured: str, environment: Mapping[str, str]) -> Path:
    """Where Hugging Face's libraries keep models on this machine, unless another place is configured."""
    home = environment.get("HF_HOME", "~/.cache/huggingface")
    return Path(configured or environment.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


def address(listen: str) -> tuple[str, int]:
    """Host and port of a setting. Raises ConfigError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"listen: {listen} is not host:port, such as 127.0.0.1:9109")
    return host.strip("[]"), int(port)


def check_names(workers: Sequence[WorkerConfig]) -> None:
    """Raises ConfigError where two have the same."""
    names = [worker.name for worker in workers]
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
        raise ConfigError(f"{shown(url)} is not a URL such as http://10.0.0.5:8000") from None
    if not parts.hostname:
        raise ConfigError(f"{shown(url)} names no host; write http://10.0.0.5:8000")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"
