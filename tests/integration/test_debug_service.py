"""The debug service, called over gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from picker.config import Config
from picker.debug.settings import Debug
from picker.debug.v1 import debug_pb2 as pb
from tests.integration.debug_rig import Rig, debug_rig, first
from tests.unit.fleets import Load, endpoint, fleet

BODY = json.dumps({"model": "llama", "prompt": "hello " * 300})


def request(body: str = BODY) -> pb.Request:
    return pb.Request(body=body, path="/v1/completions")


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with debug_rig(fleet(3), Config(redis="redis://user:hunter2@10.0.0.1:6379")) as rig:
        yield rig


async def test_workers_are_told_with_what_is_known_of_them(rig: Rig) -> None:
    rig.view.update_load(next(iter(rig.view.slots())), Load(1, running=3, waiting=2, kv_used=0.5), now=1.0)
    await rig.pick()
    told = await rig.stub.GetFleet(pb.GetFleetRequest())
    assert (told.pool, told.process, list(told.degraded)) == ("pool", "p", ["redis"])
    assert [each.worker for each in told.workers] == ["w0", "w1", "w2"]
    busy = told.workers[0]
    assert (busy.running, busy.waiting, busy.kv_used, busy.is_fresh) == (3, 2, 0.5, True)
    assert [(each.name, each.requests, each.oldest_s) for each in told.queues] == [("batch", 3, 1.5)]
    assert sum(each.in_flight_here for each in told.workers) == 1


async def test_watching_tells_again_and_again(rig: Rig) -> None:
    told = await first(rig.stub.WatchFleet(pb.WatchFleetRequest(every_s=0.2)), 2)
    assert told[1].at > told[0].at


async def test_a_past_request_is_explained_by_its_id(rig: Rig) -> None:
    answer = await rig.pick("mine")
    rig.picker.first_byte(answer.placement, 200, answer.endpoints[0])
    rig.picker.release(answer.placement)
    [told] = (await rig.stub.Explain(pb.ExplainRequest(id="mine"))).decisions
    assert (told.verdict, told.candidates[0].endpoint, told.outcome.end) == ("route", answer.endpoints[0], "answered")
    assert told.candidates[0].terms["work"] > 0
    assert told.outcome.HasField("duration_s") and not told.outcome.HasField("cached_tokens")


async def test_an_unknown_id_is_not_found(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="none of the last 0 decisions"):
        await rig.stub.Explain(pb.ExplainRequest(id="nobody"))


async def test_what_if_decides_as_the_request_itself_would_and_books_nothing(rig: Rig) -> None:
    for number in range(30):
        await rig.pick(f"warm{number}", prompt=f"{number} " * 300)
    imagined = await rig.stub.WhatIf(pb.WhatIfRequest(request=request()))
    assert rig.view.inflight.requests.sum() == 30
    answer = await rig.pick("real")
    assert list(imagined.endpoints) == list(answer.endpoints)
    [real] = rig.recorder.ring.find("real")
    assert list(imagined.candidates) and imagined.ties == real.ties
    assert len(rig.recorder.ring) == 31


async def test_what_if_breaks_ties_as_an_earlier_decision_did(rig: Rig) -> None:
    answer = await rig.pick("first")
    rig.picker.release(answer.placement)
    rig.view.approximate.clear(answer.placement.booking.slot)
    rig.view.speculative.clear(answer.placement.booking.slot)
    [event] = rig.recorder.ring.find("first")
    for _ in range(5):
        asked = pb.WhatIfRequest(request=request(), ties=event.ties, sequence=0, policy="random")
        again = await rig.stub.WhatIf(asked)
        assert list(again.endpoints) == list(answer.endpoints)


async def test_what_if_takes_suppositions(rig: Rig) -> None:
    only = pb.WhatIfRequest(request=request(), subset=[endpoint(2)])
    assert list((await rig.stub.WhatIf(only)).endpoints) == [endpoint(2)]
    avoid = pb.WhatIfRequest(request=request(), avoid=[endpoint(0), endpoint(1)])
    assert list((await rig.stub.WhatIf(avoid)).endpoints) == [endpoint(2)]
    nobody = await rig.stub.WhatIf(pb.WhatIfRequest(request=request(), subset=["10.9.9.9:1"]))
    assert (nobody.verdict, nobody.reason, nobody.ruled_out[0].rule) == ("refuse", "subset-has-no-worker", "subset")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (pb.WhatIfRequest(request=request("[]")), "not a JSON object"),
        (pb.WhatIfRequest(request=request(), policy="best"), "there is no policy 'best'"),
    ],
)
async def test_what_if_of_nonsense_says_what_is_wrong(rig: Rig, asked: pb.WhatIfRequest, message: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        await rig.stub.WhatIf(asked)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_prefix_is_looked_up_on_all_workers(rig: Rig) -> None:
    answer = await rig.pick()
    told = await rig.stub.LookUpPrefix(request())
    assert (told.rung, told.blocks > 0) == ("text", True)
    assert told.holdings[0].endpoint == answer.endpoints[0] and told.holdings[0].tokens > 0
    assert all(each.tokens == 0 for each in told.holdings[1:])


async def test_decisions_are_told_as_they_end_with_filters(rig: Rig) -> None:
    await rig.pick("early", model="nobody")
    tail = rig.stub.Tail(pb.TailRequest(verdict="refuse", last=5))

    async def later() -> None:
        while not rig.recorder.on_ended:
            await asyncio.sleep(0.01)
        answer = await rig.pick("routed")
        rig.picker.release(answer.placement)
        await rig.pick("late", model="nobody")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(later())
        found = await first(tail, 2)
    assert [each.request_id for each in found] == ["early", "late"]
    async with asyncio.timeout(10):
        while rig.recorder.on_ended:
            await asyncio.sleep(0.01)


async def test_past_decisions_alone_end_the_stream(rig: Rig) -> None:
    for number in range(3):
        await rig.pick(f"r{number}")
    found = [each async for each in rig.stub.Tail(pb.TailRequest(last=2, past_only=True))]
    assert [each.request_id for each in found] == ["r1", "r2"]


async def test_a_cordoned_worker_gets_nothing_and_the_pool_is_told(rig: Rig) -> None:
    told = await rig.stub.Cordon(pb.CordonRequest(worker=endpoint(1), note="disk"))
    assert (list(told.cordoned), told.is_shared, rig.records.found) == (["w1"], True, {"w1": "disk"})
    await rig.stub.Uncordon(pb.CordonRequest(worker="w1"))
    assert rig.records.found == {} and not rig.view.cordons


async def test_without_redis_a_cordon_counts_here_and_is_shared_later(rig: Rig) -> None:
    rig.records.is_gone = True
    told = await rig.stub.Cordon(pb.CordonRequest(worker="w1"))
    assert (list(told.cordoned), told.is_shared) == (["w1"], False)
    await rig.cordons.read()
    assert rig.view.cordons == {"w1"}
    rig.records.is_gone = False
    await rig.cordons.read()
    assert rig.records.found == {"w1": ""} and rig.view.cordons == {"w1"}


async def test_another_pickers_cordon_is_taken_over(rig: Rig) -> None:
    rig.records.found["w2"] = "other"
    await rig.cordons.read()
    assert rig.view.cordons == {"w2"}


async def test_a_drain_ends_when_the_last_request_has(rig: Rig) -> None:
    answer = await rig.pick()
    drain = rig.stub.Drain(pb.DrainRequest(worker=answer.endpoints[0]))
    progress = []
    async with asyncio.timeout(20):
        async for each in drain:
            progress.append((each.in_flight, each.is_done))
            rig.picker.release(answer.placement)
    assert progress == [(1, False), (0, True)]


async def test_who_cordons_nobody_is_told(rig: Rig) -> None:
    for call in (rig.stub.Cordon, rig.stub.Uncordon):
        with pytest.raises(grpc.aio.AioRpcError, match="no such worker"):
            await call(pb.CordonRequest(worker="w77"))


async def test_the_configuration_is_told_without_secrets(rig: Rig) -> None:
    told = (await rig.stub.GetConfig(pb.GetConfigRequest())).yaml
    assert "hunter2" not in told and "redis://***@10.0.0.1:6379" in told and "policy: expected-delay" in told


async def test_the_log_level_is_set_or_refused(rig: Rig) -> None:
    await rig.stub.SetLogLevel(pb.LogLevel(level="debug"))
    with pytest.raises(grpc.aio.AioRpcError, match="debug, info, warning, error"):
        await rig.stub.SetLogLevel(pb.LogLevel(level="loud"))
    assert rig.levels == ["debug"]


async def test_reflection_lists_the_service(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        [reply] = await first(stub.ServerReflectionInfo(iter([asked])), 1)
    assert "picker.debug.v1.Debug" in {each.name for each in reply.list_services_response.service}


async def test_with_a_token_file_only_its_token_lets_in(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    async with debug_rig(fleet(1), debug={"token_file": str(file)}) as rig:
        for sent in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.aio.AioRpcError, match="send the token"):
                await rig.stub.GetFleet(pb.GetFleetRequest(), metadata=sent)
            with pytest.raises(grpc.aio.AioRpcError, match="send the token"):
                await first(rig.stub.WatchFleet(pb.WatchFleetRequest(), metadata=sent), 1)
        assert await rig.stub.GetFleet(pb.GetFleetRequest(), metadata=(("authorization", "Bearer s3cret"),))
        file.write_text("")
        with pytest.raises(grpc.aio.AioRpcError, match="send the token"):
            await rig.stub.GetFleet(pb.GetFleetRequest(), metadata=(("authorization", "Bearer "),))


@pytest.mark.parametrize("settings", [{"listen": "0.0.0.0:1"}, {"page": ":1"}, {"listen": "[::]:9"}])
def test_beyond_this_machine_it_needs_a_token_or_client_certificates(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="set token_file, or client_ca"):
        Debug(**settings)
    assert Debug(token_file="x", **settings) and Debug(listen="[::1]:9", page="localhost:9")
