"""KEDA's side of scaling, played by a client of its kind: a pool goes from zero to several workers and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
import yaml

from picker.scaling.external_scaler import METRIC, ExternalScalerPort
from picker.scaling.keda import externalscaler_pb2 as pb
from picker.scaling.keda import externalscaler_pb2_grpc as service
from picker.simulation.process import free_ports
from picker.simulation.stack import MODEL, Plan, Stack, _answers, _is_ready
from tests.integration.traffic import until


class Sizes:
    """Numbers that a test sets."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}

    def desired(self) -> Mapping[str, int]:
        return self.now


@pytest_asyncio.fixture
async def scaler() -> AsyncIterator[tuple[Sizes, Any]]:
    sizes, [port] = Sizes(), free_ports(1)
    server = ExternalScalerPort(f"127.0.0.1:{port}", sizes)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield sizes, service.ExternalScalerStub(channel)
    await server.stop()


def ref(**metadata: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(name="vllm", namespace="models", scalerMetadata=metadata)


async def value(stub: Any, **metadata: str) -> float:
    reply = await stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref(**metadata), metricName=METRIC))
    [metric] = reply.metricValues
    assert metric.metricName == METRIC
    assert metric.metricValue == metric.metricValueFloat
    return float(metric.metricValueFloat)


async def test_the_metric_is_the_number_of_workers_by_model_or_together(scaler: tuple[Sizes, Any]) -> None:
    sizes, stub = scaler
    sizes.now = {"a": 2, "b": 3}
    assert await value(stub, model="a") == 2
    assert await value(stub, model="nobody") == 0
    assert await value(stub) == 5
    [spec] = (await stub.GetMetricSpec(ref())).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 1, 1.0)


async def test_changes_between_none_and_some_are_pushed(scaler: tuple[Sizes, Any]) -> None:
    sizes, stub = scaler
    stream = stub.StreamIsActive(ref())
    assert (await asyncio.wait_for(stream.read(), 10)).result is False
    sizes.now = {"a": 1}
    assert (await asyncio.wait_for(stream.read(), 10)).result is True
    assert (await stub.IsActive(ref())).result is True
    sizes.now = {"a": 2}
    sizes.now = {}
    assert (await asyncio.wait_for(stream.read(), 10)).result is False
    stream.cancel()


class Elastic(Stack):
    """A stack whose workers come and go, from none."""

    async def start(self) -> None:
        await self.valkey.start()
        self._write("workers.yaml", [])  # type: ignore[arg-type]
        self._write(
            "agent.yaml", {"redis": self.valkey.url, "workers_file": str(self.folder / "workers.yaml"), "listen": ""}
        )
        self.agent.start()
        self._write("picker-0.yaml", self._picker_config(0))
        self.picker.start()
        await self.picker.wait_until(lambda: _is_ready(self.picker_address))
        self._write("envoy.json", self._envoy_config())
        self.envoy.start()
        await self.envoy.wait_until(lambda: _answers(f"http://{self.admin_address}/ready"))

    async def scale(self, count: int) -> None:
        """What Kubernetes would do."""
        for number, worker in enumerate(self.workers):
            if number < count and not worker.is_running:
                await self.restart_worker(number)
            elif number >= count and worker.is_running:
                await worker.stop()
        running = [{"url": f"http://{e}", "name": f"w{n}"} for n, e in enumerate(self.endpoints) if n < count]
        path = self.folder / "workers.yaml"
        path.with_suffix(".new").write_text(yaml.safe_dump(running))
        path.with_suffix(".new").replace(path)


@pytest.mark.envoy
async def test_a_pool_goes_from_zero_to_several_and_back_while_requests_wait_and_are_served() -> None:
    [port] = free_ports(1)
    scaling = {"keda": f"127.0.0.1:{port}", "least": 0, "most": 3, "idle_s": 4.0, "down_after_s": 2.0,
               "startup_s": 0.0, "window_s": 5.0, "drain_s": 5.0}  # fmt: skip
    classes = [{"name": "standard", "wait_for_workers_s": 60.0, "max_wait_s": 60.0}]
    settings = {
        "scaling": scaling,
        "admission": {"classes": classes, "default_class": "standard"},
        "worker_model": {"prefill_s_per_token": 0.0008},
        "fallbacks": 0,
    }
    plan = Plan(workers=3, envoy="original-dst", picker=settings, worker=("--speed", "5"))
    async with Elastic(plan) as stack, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service.ExternalScalerStub(channel)
        assert not (await stub.IsActive(ref(model=MODEL))).result
        scaled: list[int] = [0]
        async with asyncio.TaskGroup() as tasks:
            keda = tasks.create_task(_as_keda(stub, stack, scaled))
            async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
                answers = await asyncio.gather(*(_ask(client, number) for number in range(24)))
            assert [answer.status_code for answer in answers] == [200] * 24
            assert max(scaled) > 1, scaled
            await until(lambda: _is(scaled, 0))
            keda.cancel()


async def _as_keda(stub: Any, stack: Elastic, scaled: list[int]) -> None:
    """IsActive decides about zero; above it the metric over its target does, as the horizontal autoscaler has it."""
    while True:
        wanted = 0
        if (await stub.IsActive(ref(model=MODEL))).result:
            [spec] = (await stub.GetMetricSpec(ref(model=MODEL))).metricSpecs
            wanted = max(1, round(await value(stub, model=MODEL) / spec.targetSizeFloat))
        if wanted != scaled[-1]:
            await stack.scale(wanted)
            scaled.append(wanted)
        await asyncio.sleep(0.3)


async def _ask(client: httpx.AsyncClient, number: int) -> httpx.Response:
    words = " ".join(f"{number}-{word}" for word in range(300))
    body = {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 30}
    return await client.post("/v1/chat/completions", json=body)


async def _is(scaled: list[int], count: int) -> bool:
    return scaled[-1] == count
