"""The truth check: what it shows, logs and tells those who ask for health."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from picker.config import Prediction
from picker.debug.health import Health
from picker.fleet.reuse import Reuse
from picker.fleet.view import View
from picker.telemetry.metrics import Metrics
from picker.truth import HEALTH_NAME, TruthCheck
from tests.unit.fleets import Load, fleet

SETTINGS = Prediction(sustained_s=10.0, window_s=5.0, least_tokens=100)


def seen(view: View, predicted: float, reused: float, now: float) -> None:
    """A thousand tokens' worth of requests, of which so much was predicted and so much came true."""
    [slot] = view.slots()
    view.reuse.placed(slot, 1000, round(1000 * predicted), now)
    view.reuse.counted(slot, 1000, round(1000 * reused), now)


async def test_a_prediction_that_stays_wrong_is_shown_logged_once_and_told_as_health() -> None:
    view, metrics, health = fleet(1), Metrics(), Health()
    view.reuse = Reuse(SETTINGS.window_s)
    check = TruthCheck(view, health, SETTINGS)
    metrics.add_model_gauges(lambda: check.readings)
    server = grpc.aio.server()
    await health.add_to(server)
    await health.set_ready(True)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def gauge(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"picker_{name}", {"model": "llama"})

    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for reused, is_wrong in ((0.1, True), (0.85, False)):
                begin = 0 if is_wrong else 100
                with capture_logs() as logs:
                    for now in range(begin, begin + 60, 2):
                        seen(view, 0.9, reused, float(now))
                        await check.look(float(now))
                names = ["prefix_prediction_wrong" if is_wrong else "prefix_prediction_right"]
                assert [line["event"] for line in logs] == names
                assert gauge("prediction_wrong") == is_wrong
                assert gauge("predicted_hit_share") == pytest.approx(0.9, abs=0.01)
                assert gauge("engine_hit_share") == pytest.approx(reused, abs=0.05)
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=HEALTH_NAME))
                assert answer.status == health_pb2.HealthCheckResponse.ServingStatus.Value(
                    "NOT_SERVING" if is_wrong else "SERVING"
                )
                ready = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"))
                assert ready.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(0)


async def test_the_learnt_length_of_answers_is_a_gauge_and_models_that_are_gone_are_forgotten() -> None:
    view = fleet(1)
    [slot] = view.slots()
    for beat in range(100):
        view.update_load(slot, Load(beat, generated_tokens=beat * 10_000, finished=beat * 10), 0.0)
    check = TruthCheck(view, Health(), SETTINGS)
    await check.look(0.0)
    assert 950 < check.readings["expected_output_tokens"][1]["llama"] < 1000
    view.retire(slot)
    await check.look(1.0)
    assert not any(values for _, values in check.readings.values())
    assert view.lengths.mean("llama") == 256


def test_only_so_many_models_are_shown() -> None:
    metrics = Metrics()
    metrics.add_model_gauges(lambda: {"x": ("X.", {f"m{number:04}": 1.0 for number in range(1000)})})
    page = list(metrics.registry.collect())
    [family] = (each for each in page if each.name == "picker_x")
    assert len(family.samples) == 100
