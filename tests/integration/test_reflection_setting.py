"""Reflection on the port for Envoy is a setting."""

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from picker.simulation.stack import Plan, Stack

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_where_it_is_off_the_port_describes_nothing(transport: str) -> None:
    plan = Plan(workers=1, worker=("--speed", "20"), picker={"reflection": False, "transport": transport})
    async with Stack(plan) as stack, grpc.aio.insecure_channel(stack.picker_address) as channel:
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in reflect(iter([reflection_pb2.ServerReflectionRequest(list_services="")])):
                pass
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
