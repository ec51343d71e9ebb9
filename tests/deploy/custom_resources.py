"""Shapes of the custom resources in deploy/, written from their public API references; only what is used there.

A field that is not in its shape fails the test: a misspelling would otherwise be dropped by the API server or refused
at the user's. Most kinds are checked against their projects' own CRDs as well (`test_real_schemas.py`). Of the others,
the shapes were compared with gateway-api-inference-extension's api/v1/inferencepool_types.go and with Envoy Gateway's
api/v1alpha1 (ext_proc_types.go, loadbalancer_types.go, the CRD of EnvoyPatchPolicy), both Apache-2.0.
"""

from __future__ import annotations

from typing import Any

import jsonschema

Schema = dict[str, Any]


def shape(_required: str = "", **fields: Schema) -> Schema:
    """An object with these fields and no others. `_required`: names of those that must be there, with spaces."""
    return {"type": "object", "additionalProperties": False, "required": _required.split(), "properties": fields}


def many(item: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": item}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "integer"}
YES_NO: Schema = {"type": "boolean"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
LABELS: Schema = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
SELECTOR = shape(matchLabels=LABELS)
TARGET = shape("group kind name", group=TEXT, kind=TEXT, name=TEXT)
BACKEND = shape("name", group={"type": "string"}, kind=TEXT, name=TEXT, port=PORT)
BREAKER = shape(maxConnections=NUMBER, maxPendingRequests=NUMBER, maxParallelRequests=NUMBER, maxParallelRetries=NUMBER)
PATCHED = (
    "config.listener.v3.Listener",
    "config.route.v3.RouteConfiguration",
    "config.cluster.v3.Cluster",
    "config.endpoint.v3.ClusterLoadAssignment",
    "extensions.transport_sockets.tls.v3.Secret",
)
PATCHES = ("add", "remove", "replace", "move", "copy", "test")
RETRY = shape(
    numRetries=NUMBER, retryOn=shape(triggers=many(TEXT), httpStatusCodes=many({"type": "integer", "minimum": 100}))
)

SPECS: dict[tuple[str, str], Schema] = {
    ("inference.networking.k8s.io/v1", "InferencePool"): shape(
        "selector targetPorts endpointPickerRef",
        selector=SELECTOR,
        targetPorts={**many(shape("number", number=PORT)), "maxItems": 8},
        endpointPickerRef=shape(
            "name port", name=TEXT, port=shape("number", number=PORT), failureMode=one_of("FailOpen", "FailClose")
        ),
    ),
    ("gateway.networking.k8s.io/v1", "Gateway"): shape(
        "gatewayClassName listeners",
        gatewayClassName=TEXT,
        listeners=many(shape("name protocol port", name=TEXT, protocol=one_of("HTTP", "HTTPS"), port=PORT)),
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): shape(
        "parentRefs rules",
        parentRefs=many(shape("name", name=TEXT)),
        rules=many(
            shape(
                matches=many(shape(path=shape("type value", type=one_of("PathPrefix", "Exact"), value=TEXT))),
                backendRefs=many(BACKEND),
                timeouts=shape(request=DURATION),
            )
        ),
    ),
    ("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy"): shape(
        "targetRefs extProc",
        targetRefs=many(TARGET),
        extProc=many(
            shape(
                "backendRefs",
                backendRefs={**many(BACKEND), "maxItems": 16},
                processingMode=shape(
                    request=shape(body=one_of("Streamed", "Buffered", "BufferedPartial", "FullDuplexStreamed")),
                    response=shape(body=one_of("Streamed", "Buffered", "BufferedPartial", "FullDuplexStreamed")),
                ),
                failOpen=YES_NO,
                messageTimeout=DURATION,
                backendSettings=shape(circuitBreaker=BREAKER, retry=RETRY),
            )
        ),
    ),
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"): shape(
        "targetRefs",
        targetRefs=many(TARGET),
        loadBalancer=shape(
            "type",
            type=one_of("ConsistentHash", "LeastRequest", "Random", "RoundRobin"),
            endpointOverride=shape("extractFrom", extractFrom={**many(shape(header=TEXT)), "maxItems": 10}),
        ),
        circuitBreaker=BREAKER,
        retry=RETRY,
    ),
    ("gateway.envoyproxy.io/v1alpha1", "ClientTrafficPolicy"): shape(
        "targetRefs",
        targetRefs=many(TARGET),
        headers=shape(earlyRequestHeaders=shape(remove=many(TEXT))),
        connection=shape(bufferLimit={"type": "string", "pattern": "^[1-9][0-9]*(Ki|Mi|Gi)?$"}),
    ),
    ("gateway.envoyproxy.io/v1alpha1", "EnvoyPatchPolicy"): shape(
        "targetRef type jsonPatches",
        targetRef=TARGET,
        type=one_of("JSONPatch"),
        jsonPatches=many(
            shape(
                "type name operation",
                type=one_of(*(f"type.googleapis.com/envoy.{kind}" for kind in PATCHED)),
                name=TEXT,
                operation=shape("op", op=one_of(*PATCHES), path=TEXT, jsonPath=TEXT, value={}),
            )
        ),
    ),
    ("networking.istio.io/v1", "DestinationRule"): shape(
        "host",
        host=TEXT,
        trafficPolicy=shape(
            tls=shape("mode", mode=one_of("DISABLE", "SIMPLE", "MUTUAL"), insecureSkipVerify=YES_NO),
            connectionPool=shape(http=shape(http2MaxRequests=NUMBER, maxRequestsPerConnection=NUMBER)),
        ),
    ),
    ("networking.gke.io/v1", "HealthCheckPolicy"): shape(
        "targetRef default",
        targetRef=TARGET,
        default=shape(
            config=shape(
                "type", type=one_of("HTTP", "GRPC"), httpHealthCheck=shape(requestPath=TEXT, port=PORT)
            )
        ),
    ),
    ("networking.gke.io/v1", "GCPBackendPolicy"): shape(
        "targetRef default",
        targetRef=TARGET,
        default=shape(timeoutSec={"type": "integer", "minimum": 1}, logging=shape(enabled=YES_NO)),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): shape(
        "selector endpoints", selector=SELECTOR, endpoints=many(shape("port", port=TEXT, interval=DURATION))
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): shape(
        "scaleTargetRef triggers",
        scaleTargetRef=shape("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        cooldownPeriod=NUMBER,
        advanced={"type": "object"},
        triggers=many(
            shape(
                "type metadata",
                type=one_of("external", "external-push", "prometheus"),
                metricType=one_of("AverageValue", "Value"),
                metadata={"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
            )
        ),
    ),
}  # fmt: skip


def is_known(manifest: dict[str, Any]) -> bool:
    return (manifest["apiVersion"], manifest["kind"]) in SPECS


def check(manifest: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError."""
    whole = shape(
        "apiVersion kind metadata spec",
        apiVersion=TEXT,
        kind=TEXT,
        metadata={"type": "object", "required": ["name"]},
        spec=SPECS[manifest["apiVersion"], manifest["kind"]],
    )
    jsonschema.validate(manifest, whole)
