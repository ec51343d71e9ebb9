"""Lines of Envoy's configuration to paste, for the checks. They are those of the shipped files."""

# ruff: noqa: E501 - type names are as long as they are

CIRCUIT_BREAKERS = "circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000, max_retries: 1000}]}"

CONTROL_FRAMES = "http2_protocol_options: {max_outbound_control_frames: 100000, max_outbound_frames: 200000}"

GRPC_RETRY = """\
grpc_service:
  retry_policy:
    retry_on: unavailable,cancelled,connect-failure,reset
    num_retries: 2
    retry_back_off: {base_interval: 0.025s, max_interval: 0.1s}
    retry_host_predicate:
    - name: envoy.retry_host_predicates.previous_hosts
      typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}
    host_selection_retry_max_attempts: 5
"""

HEADER_STRIP = """\
early_header_mutation_extensions:
- name: envoy.http.early_header_mutation.header_mutation
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
    mutations:
    - remove: x-gateway-destination-endpoint
    - remove: x-gateway-destination-endpoint-subset
    - remove: x-gateway-destination-endpoint-served
    - remove: x-prefiller-host-port
    - remove: x-encoder-hosts-ports
    - remove: x-data-parallel-host-port
"""

OVERRIDE_HOST = """\
load_balancing_policy:
  policies:
  - typed_extension_config:
      name: envoy.load_balancing_policies.override_host
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
        override_host_sources: [{header: x-gateway-destination-endpoint}]
        fallback_policy:
          policies:
          - typed_extension_config:
              name: envoy.load_balancing_policies.least_request
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest
"""

ROUTE_RETRY = """\
retry_policy:
  retry_on: connect-failure,refused-stream,reset,retriable-status-codes
  retriable_status_codes: [503]
  num_retries: 2
"""

ACCESS_LOG = """\
access_log:
- name: envoy.access_loggers.http_grpc
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
    common_config:
      log_name: picker
      transport_api_version: V3
      buffer_flush_interval: 0.1s
      grpc_service: {envoy_grpc: {cluster_name: picker}}
    additional_request_headers_to_log: [x-gateway-destination-endpoint]
"""

FIRST_OF_LIST = r"""# last but one of http_filters:
- name: envoy.filters.http.header_to_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
    request_rules:
    - header: x-gateway-destination-endpoint
      on_header_present:
        metadata_namespace: picker
        key: destination
        regex_value_rewrite: {pattern: {regex: "^([^,]*).*$"}, substitution: "\\1"}
# in the cluster:
original_dst_lb_config: {metadata_key: {key: picker, path: [{key: destination}]}}
"""
