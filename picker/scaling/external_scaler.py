"""KEDA's external scaler: a gRPC service that tells how many workers there should be.

    triggers:
    - type: external-push
      metadata: {scalerAddress: "picker.NAMESPACE:9004", model: MODEL}

The metric is the desired number itself, with a target of 1 for each worker, so that the horizontal autoscaler under
KEDA asks for just so many. Without `model` all models of the pool count together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import grpc
import structlog

from picker.listening import listen
from picker.scaling.keda import externalscaler_pb2 as pb
from picker.scaling.keda import externalscaler_pb2_grpc as service

log = structlog.get_logger()

METRIC = "picker-desired-workers"
_LOOK_EVERY_S = 0.5
_Context = grpc.aio.ServicerContext[object, object]


class Sizes(Protocol):
    """Where the numbers come from."""

    def desired(self) -> Mapping[str, int]:
        """Workers to ask for, by model."""


class ExternalScaler(service.ExternalScalerServicer):
    """Answers KEDA."""

    def __init__(self, sizes: Sizes):
        self._sizes = sizes

    async def IsActive(self, request: pb.ScaledObjectRef, context: _Context) -> pb.IsActiveResponse:
        """Whether there should be any worker."""
        return pb.IsActiveResponse(result=self._desired(request) > 0)

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: _Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """At once, and then whenever it changes."""
        told: bool | None = None
        while True:
            is_active = self._desired(request) > 0
            if is_active is not told:
                log.info("scaling_active", scaled_object=request.name, active=is_active)
                told = is_active
                yield pb.IsActiveResponse(result=is_active)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: _Context) -> pb.GetMetricSpecResponse:
        """One unit of the metric is one worker."""
        return pb.GetMetricSpecResponse(metricSpecs=[pb.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1)])

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: _Context) -> pb.GetMetricsResponse:
        """The desired number of workers."""
        value = self._desired(request.scaledObjectRef)
        metric = pb.MetricValue(metricName=METRIC, metricValue=value, metricValueFloat=value)
        return pb.GetMetricsResponse(metricValues=[metric])

    def _desired(self, request: pb.ScaledObjectRef) -> int:
        desired, model = self._sizes.desired(), request.scalerMetadata.get("model", "")
        return desired.get(model, 0) if model else sum(desired.values())


class ExternalScalerPort:
    """Listens for KEDA, in plain text as its clients do by default. Keep the port inside the cluster."""

    def __init__(self, address: str, sizes: Sizes):
        self._address = address
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        service.add_ExternalScalerServicer_to_server(ExternalScaler(sizes), self._server)  # type: ignore[no-untyped-call]

    async def start(self) -> None:
        """Raises OSError where the port is taken."""
        await listen(self._server, self._address)

    async def stop(self) -> None:
        """At once: streams of KEDA never end by themselves."""
        await self._server.stop(0)
