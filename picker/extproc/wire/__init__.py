"""Envoy's protobuf messages to events, and actions to messages: the only files of the conversation that know them."""
