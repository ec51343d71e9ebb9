"""What headers and metadata between Envoy and us are called."""

from __future__ import annotations

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
REASON = "x-picker-reason"
DECISION = "x-picker-decision"
DROPPED = "x-llm-d-request-dropped-reason"
PREFILLER = "x-prefiller-host-port"
STRIPPED = (
    SUBSET,
    SERVED,
    REASON,
    DROPPED,
    "x-picker-endpoint",
    PREFILLER,
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
)
"""Headers that choose hosts or speak for us: a client's copies never reach a worker."""
LB = "envoy.lb"
"""The namespace of metadata in which load balancers look for a pick, and say whom they took."""
