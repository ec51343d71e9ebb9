"""Who is compared. The first is the plain alternative, the second the floor that the others are measured by."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from picker.simulation.words import DEMO_TOKENIZER

MODEL = "tiny-llama"
KB = 1024


class Responder(enum.Enum):
    """What answers Envoy's ext_proc filter."""

    NONE = "no ext_proc"
    BARE = "benchmarks.extproc.bare"
    PICKER = "picker serve"


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """One listener of the one Envoy, and a process of its own behind it unless there is nothing to answer.

    `envoy` is the shipped configuration that its listener is made from, `filter` what it changes in the ext_proc
    filter, `picker` what it adds to the picker's file, `most_bytes` the largest body that it takes part with, `rung`
    how the picker is to have read the prompts.
    """

    label: str
    responder: Responder
    envoy: str = "fail-open"
    filter: dict[str, Any] = field(default_factory=dict)
    picker: dict[str, Any] = field(default_factory=dict)
    most_bytes: int = 1 << 30
    rung: str = "text"


NONE = Contender("none", Responder.NONE)
BARE = Contender("bare", Responder.BARE)
CONTENDERS = (
    NONE,
    BARE,
    Contender("picker, grpcio", Responder.PICKER, picker={"transport": "grpcio"}),
    Contender("picker", Responder.PICKER),
    # Larger prompts take tens of milliseconds to tokenise: a question about the tokenizer, and another benchmark.
    Contender(
        "picker, tokens",
        Responder.PICKER,
        picker={"tokenizers": {MODEL: str(DEMO_TOKENIZER)}},
        most_bytes=2 * KB,
        rung="tokens",
    ),
    Contender("picker, full duplex", Responder.PICKER, envoy="full-duplex"),
)


def _in_mode(label: str, rung: str = "text", envoy: str = "fail-open", **modes: str) -> Contender:
    response = {"response_header_mode": "SEND", "response_trailer_mode": "SEND"}
    mode = {"request_header_mode": "SEND"} | response | modes
    unasked = modes["request_body_mode"] == "STREAMED"
    return Contender(
        label,
        Responder.PICKER,
        envoy=envoy,
        filter={"processing_mode": mode} | ({"send_body_without_waiting_for_header_response": True} if unasked else {}),
        rung=rung,
    )


MODES = (
    NONE,
    BARE,
    _in_mode("headers only", "load", request_body_mode="NONE"),
    _in_mode("buffered", request_body_mode="BUFFERED"),
    _in_mode("buffered partial", request_body_mode="BUFFERED_PARTIAL"),
    _in_mode("streamed", request_body_mode="STREAMED", request_trailer_mode="SEND"),
    _in_mode("full duplex", request_body_mode="FULL_DUPLEX_STREAMED", request_trailer_mode="SEND"),
    Contender("full duplex both ways", Responder.PICKER, envoy="gateway"),
)
"""The picker in each body mode, for `--modes`."""
