"""The way to the API server: who we are there, lists, watches.

The client library finds the way in and signs requests. Its models are left aside: a list of a thousand pods takes 0.8 s
as models, in which nothing else runs, and 4 ms as structs of what matters.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from kubernetes_asyncio import client, config

from picker.config_files import ConfigError
from picker.kubernetes.objects import Object

T = TypeVar("T", bound=Object)
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LIST_S = 30.0
_GRACE_S = 30


class ApiError(Exception):
    """The API server did not answer as it should; `status` is HTTP's, 0 where there was none."""

    def __init__(self, status: int, reason: str):
        super().__init__(f"{reason} {status}" if status else reason)
        self.status = status


class ListMetadata(msgspec.Struct, rename="camel"):
    """From which version on to watch."""

    resource_version: str = ""


class Listed(msgspec.Struct, Generic[T]):
    """The answer to a list."""

    metadata: ListMetadata
    items: list[T] = []


class Event(msgspec.Struct):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    """The object of an event of type ERROR."""

    code: int = 0
    reason: str = ""


class Api:
    """Raises ApiError."""

    def __init__(self, session: Any):
        self._session = session

    async def list(self, path: str, kind: type[T], query: Mapping[str, str]) -> Listed[T]:
        """All objects that a query selects."""
        async with self._get(path, query, _LIST_S) as answer:
            data = await answer.read()
        return _decode(data, Listed[kind])  # type: ignore[valid-type]

    async def watch(
        self, path: str, kind: type[T], query: Mapping[str, str], version: str, seconds: int
    ) -> AsyncGenerator[tuple[str, T], None]:
        """What changes after a version, for so many seconds at most: ADDED, MODIFIED or DELETED, and the object."""
        query = {**query, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        async with self._get(path, query, seconds + _GRACE_S) as answer:
            while line := await answer.content.readline():
                event = _decode(line, Event)
                if event.type == "ERROR":
                    status = _decode(event.object, Status)
                    raise ApiError(status.code, status.reason)
                if event.type in ("ADDED", "MODIFIED", "DELETED"):
                    yield event.type, _decode(event.object, kind)

    @asynccontextmanager
    async def _get(self, path: str, query: Mapping[str, str], timeout_s: float) -> AsyncIterator[Any]:
        try:
            answer = await self._session.call_api(
                path, "GET", query_params=list(query.items()), header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"], _preload_content=False, _request_timeout=timeout_s,
            )  # fmt: skip
            async with answer:
                if answer.status != 200:
                    raise ApiError(answer.status, answer.reason or "")
                yield answer
        # A line that is too long is a ValueError.
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, type(error).__name__) from None


@asynccontextmanager
async def api(kubeconfig: str) -> AsyncIterator[Api]:
    """As the file says, or as a pod of the cluster. Raises ConfigError where there is no way in."""
    configuration = client.Configuration()
    try:
        if kubeconfig:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ConfigError(f"kubernetes: {error}; outside of a cluster set kubeconfig") from None
    async with client.ApiClient(configuration) as session:
        yield Api(session)


def own_namespace() -> str:
    """That of the pod we run in; "default" outside of a cluster."""
    try:
        return _NAMESPACE.read_text().strip()
    except OSError:
        return "default"


D = TypeVar("D")


def _decode(data: bytes | msgspec.Raw, kind: type[D]) -> D:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(0, f"not understood: {type(error).__name__}") from None
