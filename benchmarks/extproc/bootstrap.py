"""One Envoy with a listener for each contender, made from the configurations that we ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.extproc.contenders import Contender, Responder
from picker import envoy_config

_CLUSTERS = ("workers", "picker")


def bootstrap(admin: str, sites: Mapping[Contender, tuple[str, str]], endpoints: Sequence[str]) -> dict[str, Any]:
    """Envoy's configuration. `sites`: for each contender where its listener and its responder are (host:port)."""
    resources: dict[str, list[Any]] = {"listeners": [], "clusters": []}
    whole: dict[str, Any] = {}
    for number, (contender, (listen, responder)) in enumerate(sites.items()):
        whole = envoy_config.load(contender.envoy, listen=listen, admin=admin, picker=responder)
        one = _renamed(_adapted(whole["static_resources"], contender, endpoints), f"-{number}")
        resources["listeners"] += one["listeners"]
        resources["clusters"] += one["clusters"]
    return whole | {"static_resources": resources}


def _adapted(resources: dict[str, Any], contender: Contender, endpoints: Sequence[str]) -> dict[str, Any]:
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    ext_proc = manager["http_filters"][0]["typed_config"]
    # Failing open would hide failures from the client, who counts them.
    ext_proc["failure_mode_allow"] = False
    ext_proc |= contender.filter
    if contender.responder is Responder.PICKER:
        return resources
    # Only a picker takes access logs and knows the workers.
    del manager["access_log"]
    workers = next(cluster for cluster in resources["clusters"] if cluster["name"] == "workers")
    del workers["eds_cluster_config"]
    workers |= {"type": "STATIC", "load_assignment": _assignment(endpoints)}
    if contender.responder is Responder.NONE:
        del manager["http_filters"][0]
        del workers["load_balancing_policy"]
        workers["lb_policy"] = "ROUND_ROBIN"
        resources["clusters"] = [workers]
    return resources


def _assignment(endpoints: Sequence[str]) -> dict[str, Any]:
    hosts = [{"endpoint": {"address": _address(endpoint)}} for endpoint in endpoints]
    return {"cluster_name": "workers", "endpoints": [{"lb_endpoints": hosts}]}


def _address(endpoint: str) -> dict[str, Any]:
    host, _, port = endpoint.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _renamed(part: Any, suffix: str) -> Any:
    """With a suffix on our clusters' names, wherever they are named; on the listener's too."""
    if isinstance(part, list):
        return [_renamed(item, suffix) for item in part]
    if not isinstance(part, dict):
        return part
    return {key: _renamed_value(key, value, suffix) for key, value in part.items()}


def _renamed_value(key: str, value: Any, suffix: str) -> Any:
    is_name = key in ("cluster", "cluster_name", "name") and value in (*_CLUSTERS, "ingress")
    return f"{value}{suffix}" if is_name else _renamed(value, suffix)
