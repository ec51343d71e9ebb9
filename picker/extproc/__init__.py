"""The conversation that Envoy's ext_proc filter has with us about one request.

`events` is what we are told, `actions` what we want done, `conversation` the state machine between them, without I/O;
`wire` turns Envoy's messages into events and actions into messages; `service` moves bytes, over gRPC.
"""
