"""Workers from Kubernetes: the pods that a label selector selects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing

from picker.agent.config import KubernetesConfig, WorkerConfig
from picker.kubernetes.api import api, own_namespace
from picker.kubernetes.follow import RETRY_S, Followed, Resource
from picker.kubernetes.objects import Pod


async def watch_pods(settings: KubernetesConfig, retry_s: float = RETRY_S) -> AsyncIterator[list[WorkerConfig]]:
    """The workers, and again whenever they have changed. Raises ConfigError where there is no way into a cluster."""
    namespace = settings.namespace or own_namespace()
    resource = Resource(f"/api/v1/namespaces/{namespace}/pods", Pod, labels=settings.selector)
    async with (
        api(settings.kubeconfig) as way_in,
        aclosing(Followed(way_in, resource, settings.relist_s, retry_s).changes()) as changes,
    ):
        async for pods in changes:
            yield workers_of(pods, settings)


def workers_of(pods: Sequence[Pod], settings: KubernetesConfig) -> list[WorkerConfig]:
    """Those that have an address and have not ended."""
    return [_worker(pod, settings) for pod in pods if pod.host and not pod.has_ended]


def _worker(pod: Pod, settings: KubernetesConfig) -> WorkerConfig:
    # The port is the operator's: pods have several, and the first may be a side-car's.
    common = settings.worker
    events, replay = (each and each.replace("{ip}", pod.host) for each in (common.kv_events, common.kv_replay))
    return WorkerConfig(
        url=f"{settings.scheme}://{pod.host}:{settings.port}",
        name=pod.metadata.name,
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
        if source in pod.metadata.labels:
            yield name, pod.metadata.labels[source]
