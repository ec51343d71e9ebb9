"""Workers from Kubernetes: the pods that a label selector selects.

A list, then a watch from there on, then after `relist_s` a list again: whatever a watch misses (Kubernetes drops events
of those who fall behind, and a network may cut a stream without a word) is put right by the next list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.exceptions import ApiException

from picker.agent.config import KubernetesConfig, WorkerConfig
from picker.config_files import ConfigError

_log = structlog.get_logger()
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_RETRY_S = 2.0
_GRACE_S = 30
_ENDED = ("Failed", "Succeeded")


@dataclass(frozen=True, slots=True)
class Pod:
    """What counts of a pod. `is_leaving`: it has been told to end; it may still be Ready, and serves what it has."""

    name: str
    uid: str
    ip: str
    phase: str
    is_leaving: bool
    labels: dict[str, str]


class Pods:
    """The pods of a selector, by name. Pure."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}

    def replace(self, pods: list[Pod]) -> None:
        """These are all there are."""
        self._pods = {pod.name: pod for pod in pods}

    def apply(self, kind: str, pod: Pod) -> None:
        """An event of a watch: ADDED, MODIFIED or DELETED."""
        known = self._pods.get(pod.name)
        if kind != "DELETED":
            self._pods[pod.name] = pod
        # The name may be a new pod's by now.
        elif known is not None and known.uid == pod.uid:
            del self._pods[pod.name]

    def workers(self, settings: KubernetesConfig) -> list[WorkerConfig]:
        """Those that have an address and have not ended."""
        return [_worker(pod, settings) for pod in self._pods.values() if pod.ip and pod.phase not in _ENDED]


async def watch_pods(settings: KubernetesConfig, retry_s: float = _RETRY_S) -> AsyncIterator[list[WorkerConfig]]:
    """The workers, and again whenever they have changed. Raises ConfigError where there is no way into a cluster.

    While the API server cannot be reached the workers stay as they are.
    """
    configuration = await _configuration(settings)
    namespace = settings.namespace or _own_namespace()
    pods, is_lost = Pods(), False
    async with client.ApiClient(configuration) as api:
        while True:
            try:
                async for workers in _follow(client.CoreV1Api(api), namespace, settings, pods):
                    if is_lost:
                        _log.info("kubernetes_back", workers=len(workers))
                        is_lost = False
                    yield workers
            except (ApiException, aiohttp.ClientError, TimeoutError, OSError) as error:
                # 410: what we know is too old to go on from; no fault of anybody's.
                if not is_lost and getattr(error, "status", None) != 410:
                    is_lost = True
                    reason = f"{type(error).__name__} {getattr(error, 'status', '')}"
                    _log.warning("kubernetes_lost", reason=reason, consequence="the workers stay as they are")
                await asyncio.sleep(retry_s)


async def _follow(
    api: Any, namespace: str, settings: KubernetesConfig, pods: Pods
) -> AsyncIterator[list[WorkerConfig]]:
    """From a list to the end of the watch that follows it."""
    listed = await api.list_namespaced_pod(namespace, label_selector=settings.selector)
    pods.replace([_pod(item) for item in listed.items])
    yield pods.workers(settings)
    async with watch.Watch() as watcher:
        stream = watcher.stream(
            api.list_namespaced_pod,
            namespace,
            label_selector=settings.selector,
            resource_version=listed.metadata.resource_version,
            timeout_seconds=settings.relist_s,
            _request_timeout=settings.relist_s + _GRACE_S,
        )
        async for event in stream:
            if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                pods.apply(event["type"], _pod(event["object"]))
                yield pods.workers(settings)


def _pod(item: Any) -> Pod:
    metadata, status = item.metadata, item.status
    return Pod(
        metadata.name,
        metadata.uid or "",
        (status and status.pod_ip) or "",
        (status and status.phase) or "",
        metadata.deletion_timestamp is not None,
        metadata.labels or {},
    )


def _worker(pod: Pod, settings: KubernetesConfig) -> WorkerConfig:
    # The port is the operator's: pods have several, and the first may be a side-car's.
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    common = settings.worker
    events, replay = (each and each.replace("{ip}", host) for each in (common.kv_events, common.kv_replay))
    return WorkerConfig(
        url=f"{settings.scheme}://{host}:{settings.port}",
        name=pod.name,
        engine=common.engine,
        kv_events=events,
        kv_replay=replay,
        gpu=common.gpu,
        api_key_file=common.api_key_file,
        draining=pod.is_leaving,
        labels=dict(_labels(pod, settings)),
    )


def _labels(pod: Pod, settings: KubernetesConfig) -> Iterator[tuple[str, str]]:
    for name, source in settings.labels.items():
        if source in pod.labels:
            yield name, pod.labels[source]


async def _configuration(settings: KubernetesConfig) -> Any:
    configuration = client.Configuration()
    try:
        if settings.kubeconfig:
            await config.load_kube_config(config_file=settings.kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ConfigError(f"kubernetes: {error}; outside of a cluster set kubeconfig") from None
    return configuration


def _own_namespace() -> str:
    try:
        return _NAMESPACE.read_text().strip()
    except OSError:
        return "default"
