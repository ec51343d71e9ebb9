"""A double of Kubernetes' API server, over HTTP: lists pods and InferencePools, and streams what a test changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.waiting import until

PODS = "pods"
V1 = "inference.networking.k8s.io/v1"
V1ALPHA2 = "inference.networking.x-k8s.io/v1alpha2"


@dataclass
class Watcher:
    """Somebody who watches what a label selector selects of a kind."""

    kind: str
    labels: str
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)

    def tell(self, event: str, kind: str, changed: dict[str, Any]) -> None:
        if kind == self.kind and selects(self.labels, changed):
            self.events.put_nowait({"type": event, "object": {"kind": "K", "apiVersion": "v1", **changed}})


class ApiServer:
    """What it holds is in `objects`, by kind and name."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.objects: dict[str, dict[str, dict[str, Any]]] = {PODS: {}, V1: {}, V1ALPHA2: {}}
        self.all_watchers: list[Watcher] = []
        self.version = 1
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.queries: list[dict[str, str]] = []
        self.is_gone = False
        self.fails = 0

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        return self.objects[PODS]

    @property
    def watchers(self) -> list[Watcher]:
        """Of pods."""
        return [each for each in self.all_watchers if each.kind == PODS]

    @property
    def selectors(self) -> set[str]:
        """By which pods were asked for."""
        return {query["labelSelector"] for query in self.queries if "labelSelector" in query}

    async def list_pods(self, request: Request) -> Response:
        return self.answer(PODS, request)

    async def list_pools(self, request: Request) -> Response:
        return self.answer("{group}/{version}".format(**request.path_params), request)

    def answer(self, kind: str, request: Request) -> Response:
        query = dict(request.query_params)
        self.queries.append(query)
        labels, name = query.get("labelSelector", ""), query.get("fieldSelector", "").removeprefix("metadata.name=")
        if query.get("watch"):
            return self.watch(Watcher(kind, labels), int(query["resourceVersion"]))
        if self.fails:
            self.fails -= 1
            return Response(status_code=500)
        if kind not in self.objects:
            return Response(status_code=404)
        items = [each for key, each in self.objects[kind].items() if name in ("", key) and selects(labels, each)]
        metadata = {"resourceVersion": str(self.version)}
        return JSONResponse({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})

    def watch(self, watcher: Watcher, since: int) -> Response:
        if self.is_gone:
            self.is_gone = False
            return JSONResponse({"kind": "Status", "code": 410, "reason": "Expired"}, 410)
        self.all_watchers.append(watcher)
        for version, *told in self.history:
            if version > since:
                watcher.tell(*told)

        async def lines() -> AsyncIterator[bytes]:
            while (event := await watcher.events.get()) is not None:
                yield json.dumps(event).encode() + b"\n"

        return StreamingResponse(lines(), media_type="application/json")

    def put(
        self,
        name: str,
        ip: str = "",
        phase: str = "Running",
        leaving: bool = False,
        tell: bool = True,
        ready: bool = True,
        restarts: int = 0,
        labels: dict[str, str] | None = None,
    ) -> None:
        """A pod comes or changes."""
        metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}-{ip}"}
        metadata |= {"labels": labels or {"app": "vllm", "topology": "a"}}
        if leaving:
            metadata["deletionTimestamp"] = "2026-11-30T12:00:00Z"
        containers = [{"name": "side-car", "ports": [{"containerPort": 9}]}, {"name": "engine", "ports": []}]
        status: dict[str, Any] = {"phase": phase, **({"podIP": ip} if ip else {})}
        status["conditions"] = [{"type": "Ready", "status": str(ready)}]
        status["containerStatuses"] = [{"name": "engine", "restartCount": restarts}]
        self.change(PODS, {"metadata": metadata, "spec": {"containers": containers}, "status": status}, tell)

    def put_pool(self, name: str = "default", kind: str = V1, **spec: Any) -> None:
        """An InferencePool comes or changes."""
        self.change(kind, {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec})

    def change(self, kind: str, changed: dict[str, Any], tell: bool = True) -> None:
        name = changed["metadata"]["name"]
        event = "MODIFIED" if name in self.objects[kind] else "ADDED"
        self.objects[kind][name] = changed
        if tell:
            self.tell(event, changed, kind)

    def delete(self, name: str, tell: bool = True, kind: str = PODS) -> None:
        gone = self.objects[kind].pop(name)
        if tell:
            self.tell("DELETED", gone, kind)

    def tell(self, event: str, changed: dict[str, Any], kind: str = PODS) -> None:
        self.version += 1
        self.history.append((self.version, event, kind, changed))
        for watcher in self.all_watchers:
            watcher.tell(event, kind, changed)

    def cut(self) -> None:
        """Ends all streams."""
        for watcher in self.all_watchers:
            watcher.events.put_nowait(None)
        self.all_watchers.clear()


def selects(selector: str, thing: dict[str, Any]) -> bool:
    wanted = dict(part.split("=") for part in selector.split(",") if part)
    return wanted.items() <= thing["metadata"].get("labels", {}).items()


def way_to(server: str) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
    }


@asynccontextmanager
async def serving_api(folder: Path) -> AsyncIterator[ApiServer]:
    """One of the namespace `llm`, with a kubeconfig that leads to it."""
    api = ApiServer(folder / "kubeconfig")
    pools = "/apis/{group}/{version}/namespaces/llm/inferencepools"
    app = Starlette(routes=[Route("/api/v1/namespaces/llm/pods", api.list_pods), Route(pools, api.list_pools)])
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(server._serve())
        await until(lambda: server.started)
        host, port = server.servers[0].sockets[0].getsockname()
        api.kubeconfig.write_text(yaml.safe_dump(way_to(f"http://{host}:{port}")))
        try:
            yield api
        finally:
            api.cut()
            server.should_exit = True
            await task
