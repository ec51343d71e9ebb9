"""What several benchmarks need: load, upstreams, a published fleet, conversations, CPU time."""
