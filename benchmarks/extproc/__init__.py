"""What the picker adds to a request through a real Envoy, in latency and in CPU."""
