"""What Envoy's access log says of an exchange."""

from collections.abc import AsyncIterator

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf import text_format

from picker.extproc.access_log import AccessLog, Outcome

SERVED = "upstream_remote_address {{ socket_address {{ address: '{0}' port_value: {1} }} }}"
PICKED = "request {{ request_headers {{ key: 'x-gateway-destination-endpoint' value: '{0}' }} }}"

ENTRIES = {
    "served by the first": (
        "response { response_code { value: 200 } } "
        f"common_properties {{ upstream_request_attempt_count: 1 {SERVED.format('10.0.0.1', 80)} }} "
        + PICKED.format("10.0.0.1:80,10.0.0.2:80"),
        Outcome(200, 1, ("10.0.0.1:80", "10.0.0.2:80"), "10.0.0.1:80"),
    ),
    "served over IPv6 without a pick": (
        f"common_properties {{ upstream_request_attempt_count: 2 {SERVED.format('fd00::1', 80)} }}",
        Outcome(0, 2, (), "[fd00::1]:80"),
    ),
    "broken off by the worker": (
        "response { response_code { value: 200 } "
        "response_code_details: 'upstream_reset_after_response_started{connection_termination}' }",
        Outcome(
            200, 0, (), "", is_broken=True, details="upstream_reset_after_response_started{connection_termination}"
        ),
    ),
    "served by nobody": ("response { response_code { value: 503 } }", Outcome(503, 0, (), "")),
}


async def say(*batches: list[str]) -> AsyncIterator[als_pb2.StreamAccessLogsMessage]:
    for batch in batches:
        said = als_pb2.StreamAccessLogsMessage()
        for text in batch:
            said.http_logs.log_entry.append(text_format.Parse(text, accesslog_pb2.HTTPAccessLogEntry()))
        yield said


@pytest.mark.parametrize(("entry", "outcome"), ENTRIES.values(), ids=list(ENTRIES))
async def test_an_entry_is_an_outcome(entry: str, outcome: Outcome) -> None:
    seen: list[Outcome] = []
    await AccessLog(seen.append)._receive(say([entry]), None)
    assert seen == [outcome]


async def test_all_entries_of_all_batches_are_handed_on_in_order() -> None:
    texts = [f"response {{ response_code {{ value: {status} }} }}" for status in (200, 404, 503)]
    seen: list[Outcome] = []
    await AccessLog(seen.append)._receive(say(texts[:2], [], texts[2:]), None)
    assert [outcome.status for outcome in seen] == [200, 404, 503]
