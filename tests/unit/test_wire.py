"""Envoy's messages to events and actions to messages."""

import json

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2, text_format
from hypothesis import given
from hypothesis import strategies as st

from picker.extproc import actions as do
from picker.extproc.events import (
    BodyMode,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from picker.extproc.wire.building import build
from picker.extproc.wire.names import DESTINATION, PREFILLER, REASON, STRIPPED, SUBSET
from picker.extproc.wire.parsing import Unreadable, parse


def message(text: str) -> pb.ProcessingRequest:
    return text_format.Parse(text, pb.ProcessingRequest())


def header(key: str, raw_value: str = "", value: str = "") -> str:
    fields = [
        f'key: "{key}"',
        *(f'{name}: "{text}"' for name, text in (("raw_value", raw_value), ("value", value)) if text),
    ]
    return f"headers {{ {' '.join(fields)} }}"


def headers(*lines: str, kind: str = "request_headers", rest: str = "") -> str:
    return f"{kind} {{ headers {{ {' '.join(lines)} }} {rest} }}"


def metadata(namespace: str, key: str, value: str) -> str:
    fields = f'fields {{ key: "{key}" value {{ {value} }} }}'
    return f'metadata_context {{ filter_metadata {{ key: "{namespace}" value {{ {fields} }} }} }}'


def hint(value: str) -> str:
    return headers() + metadata("envoy.lb.subset_hint", SUBSET, value)


def wanting(subset: set[str] | None) -> RequestHeaders:
    return RequestHeaders({}, subset=None if subset is None else frozenset(subset))


ANNOUNCED = "protocol_config {{ request_body_mode: {0} response_body_mode: {1} }}"
ONE, TWO = "10.0.0.1:8000", "[fd00::2]:8000"

INCOMING: dict[str, tuple[str, Event]] = {
    "a first message": (
        headers(header(":path", "/v1/x"), header("X-Name", "a"), rest="end_of_stream: true"),
        RequestHeaders({":path": "/v1/x", "x-name": "a"}, end_of_stream=True),
    ),
    "a header's text in value": (headers(header("a", value="b")), RequestHeaders({"a": "b"})),
    "a header's text in both": (headers(header("a", "raw", "plain")), RequestHeaders({"a": "raw"})),
    "an empty header": (headers(header("a")), RequestHeaders({"a": ""})),
    "a repeated header": (headers(header("a", "1"), header("A", "2")), RequestHeaders({"a": "1"})),
    "a header that is no UTF-8": (headers(header("a", r"x\377y")), RequestHeaders({"a": "x\ufffdy"})),
    "announced modes": (
        headers() + ANNOUNCED.format("FULL_DUPLEX_STREAMED", "STREAMED"),
        RequestHeaders({}, request_mode=BodyMode.FULL_DUPLEX, response_mode=BodyMode.STREAMED),
    ),
    "a mode that we do not know": (
        headers() + ANNOUNCED.format("17", "99"),
        RequestHeaders({}, request_mode=BodyMode.NONE, response_mode=BodyMode.NONE),
    ),
    "a body that comes unasked": (
        headers()
        + "protocol_config { request_body_mode: STREAMED send_body_without_waiting_for_header_response: true }",
        RequestHeaders({}, request_mode=BodyMode.STREAMED, body_comes_unasked=True),
    ),
    "a subset as a list": (
        hint(f'list_value {{ values {{ string_value: "{ONE}" }} values {{ string_value: "{TWO}" }} }}'),
        wanting({ONE, TWO}),
    ),
    "a subset as a string": (hint(f'string_value: "{ONE}, {TWO},"'), wanting({ONE, TWO})),
    "a subset in another spelling": (hint('string_value: "[FD00:0::2]:8000"'), wanting({TWO})),
    "an empty list": (hint("list_value { }"), wanting(set())),
    "an empty string": (hint('string_value: ""'), wanting(set())),
    "a subset that is a number": (hint("number_value: 5"), wanting(set())),
    "a subset of nonsense": (hint('string_value: "host:80, 10.0.0.1:0, 10.0.0.1:99999, :"'), wanting(set())),
    "a port of many digits": (hint(f'string_value: "10.0.0.1:{"9" * 5000}"'), wanting(set())),
    "no subset": (headers(), wanting(None)),
    "a subset in another namespace": (
        headers() + metadata("envoy.lb", SUBSET, f'string_value: "{ONE}"'),
        wanting(None),
    ),
    "a subset that the client sends": (headers(header(SUBSET, ONE)), RequestHeaders({SUBSET: ONE}, subset=None)),
    "a body": ('request_body { body: "abc" end_of_stream: true }', RequestBody(b"abc", True)),
    "a piece of a body": ('request_body { body: "abc" }', RequestBody(b"abc", False)),
    "request trailers": ("request_trailers { }", RequestTrailers()),
    "a response": (headers(header(":status", "200"), kind="response_headers"), ResponseHeaders(200)),
    "a response without a status": (headers(kind="response_headers"), ResponseHeaders(0)),
    "a status that is no number": (headers(header(":status", "2x"), kind="response_headers"), ResponseHeaders(0)),
    "a status of many digits": (headers(header(":status", "9" * 5000), kind="response_headers"), ResponseHeaders(0)),
    "who served, as an attribute": (
        headers(kind="response_headers")
        + 'attributes { key: "envoy.filters.http.ext_proc" value { fields { key: "upstream.address" '
        + f'value {{ string_value: "{ONE}" }} }} }} }}',
        ResponseHeaders(0, ONE),
    ),
    "who served, as metadata": (
        headers(kind="response_headers")
        + metadata("envoy.lb", "x-gateway-destination-endpoint-served", f'string_value: "{ONE}"'),
        ResponseHeaders(0, ONE),
    ),
    "a response body": ('response_body { body: "abc" }', ResponseBody(b"abc", False)),
    "response trailers": ("response_trailers { }", ResponseTrailers()),
}


@pytest.mark.parametrize(("text", "event"), INCOMING.values(), ids=list(INCOMING))
def test_what_envoy_says(text: str, event: Event) -> None:
    assert parse(message(text).SerializeToString()) == event


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\xff", b"GET / HTTP/1.1\r\n"])
def test_what_is_no_message_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(data)


SAMPLES = [message(text).SerializeToString() for text, _ in INCOMING.values()]


@given(st.binary(max_size=80) | st.builds(lambda sample, at, byte: sample[:at] + byte + sample[at + 1 :],
       st.sampled_from(SAMPLES), st.integers(0, 200), st.binary(max_size=1)))  # fmt: skip
def test_any_bytes_are_an_event_or_unreadable(data: bytes) -> None:
    try:
        parse(data)
    except Unreadable as error:
        assert len(str(error)) < 100


def test_an_unreadable_message_is_not_quoted() -> None:
    with pytest.raises(Unreadable) as caught:
        parse(b"\x0a\xffsecret")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


# The other direction.

CONSTANT: dict[str, tuple[do.Send, str]] = {
    "headers, go on": (do.SendHeadersContinue(), "request_headers { }"),
    "body, go on": (do.SendBodyContinue(), "request_body { }"),
    "trailers, go on": (do.SendTrailersContinue(), "request_trailers { }"),
    "response headers, go on": (do.SendResponseHeadersContinue(), "response_headers { }"),
    "response body, go on": (do.SendResponseBodyContinue(), "response_body { }"),
    "response trailers, go on": (do.SendResponseTrailersContinue(), "response_trailers { }"),
    "a piece of the body": (
        do.SendBodyPiece(b"abc", False),
        'request_body { response { body_mutation { streamed_response { body: "abc" } } } }',
    ),
    "the last piece": (
        do.SendBodyPiece(b"", True),
        "request_body { response { body_mutation { streamed_response { end_of_stream: true } } } }",
    ),
    "a piece of the body replaced": (
        do.SendBodyContinue(b"new"),
        'request_body { response { body_mutation { body: "new" } } }',
    ),
    "a piece of the body taken out": (
        do.SendBodyContinue(b""),
        "request_body { response { body_mutation { clear_body: true } } }",
    ),
    "a piece of the response": (
        do.SendResponseBodyPiece(b"abc", True),
        'response_body { response { body_mutation { streamed_response { body: "abc" end_of_stream: true } } } }',
    ),
}


def response(action: do.Send) -> pb.ProcessingResponse:
    return pb.ProcessingResponse.FromString(build(action))


def mutated(mutation: pb.HeaderMutation) -> dict[str, str]:
    """Headers that are set. Each must be in raw_value alone, and overwrite."""
    for option in mutation.set_headers:
        assert option.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        assert not option.header.value
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


@pytest.mark.parametrize(("action", "text"), CONSTANT.values(), ids=list(CONSTANT))
def test_what_we_say(action: do.Send, text: str) -> None:
    assert response(action) == text_format.Parse(text, pb.ProcessingResponse())


@pytest.mark.parametrize(
    ("action", "kind"),
    [(do.SendHeadersPick((ONE, TWO)), "request_headers"), (do.SendBodyPick((ONE, TWO)), "request_body")],
)
def test_a_pick_is_said_in_a_header_and_in_metadata(action: do.Send, kind: str) -> None:
    said = response(action)
    assert said.WhichOneof("response") == kind
    common = getattr(said, kind).response
    assert mutated(common.header_mutation)[DESTINATION] == f"{ONE},{TWO}"
    lb = said.dynamic_metadata.fields["envoy.lb"].struct_value
    assert lb == struct_pb2.Struct(fields={DESTINATION: struct_pb2.Value(string_value=f"{ONE},{TWO}")})


@pytest.mark.parametrize("action", [do.SendHeadersPick(()), do.SendBodyPick(())])
def test_without_a_pick_a_clients_copy_of_the_header_is_removed(action: do.Send) -> None:
    said = response(action)
    common = getattr(said, said.WhichOneof("response") or "").response
    assert DESTINATION in common.header_mutation.remove_headers
    assert DESTINATION not in mutated(common.header_mutation)
    assert not said.HasField("dynamic_metadata")


@pytest.mark.parametrize("action", [do.SendHeadersPick((ONE,)), do.SendBodyPick(()), do.SendBodyPick((ONE,), b"new")])
def test_headers_that_speak_for_us_never_reach_a_worker(action: do.Send) -> None:
    said = response(action)
    common = getattr(said, said.WhichOneof("response") or "").response
    assert set(STRIPPED) <= set(common.header_mutation.remove_headers)
    assert not set(common.header_mutation.remove_headers) & set(mutated(common.header_mutation))


@pytest.mark.parametrize("action", [do.SendHeadersPick((ONE,), TWO), do.SendBodyPick((ONE,), b"new", TWO)])
def test_where_the_prompt_is_computed_first_is_said_in_place_of_a_clients_claim(action: do.Send) -> None:
    said = response(action)
    common = getattr(said, said.WhichOneof("response") or "").response
    assert mutated(common.header_mutation)[PREFILLER] == TWO
    assert PREFILLER not in common.header_mutation.remove_headers
    assert {*STRIPPED} - {PREFILLER} <= set(common.header_mutation.remove_headers)


def test_a_replaced_body_comes_with_its_length() -> None:
    common = response(do.SendBodyPick((ONE,), b"new body")).request_body.response
    assert common.body_mutation.body == b"new body"
    assert mutated(common.header_mutation) == {DESTINATION: ONE, "content-length": "8"}


def test_a_client_is_told_who_served_it() -> None:
    common = response(do.SendResponseHeadersContinue("x-who", ONE)).response_headers.response
    assert mutated(common.header_mutation) == {"x-who": ONE}


@pytest.mark.parametrize("status", [400, 404, 408, 413, 429, 500, 503])
def test_a_refusal_is_an_error_of_the_clients_api(status: int) -> None:
    immediate = response(do.SendRefusal(status, "some-reason", "Some text.")).immediate_response
    assert immediate.status.code == status
    assert immediate.details == "picker:some-reason"
    assert json.loads(immediate.body)["error"]["message"] == "Some text."
    said = mutated(immediate.headers)
    assert (said["content-type"], said[REASON]) == ("application/json", "some-reason")
