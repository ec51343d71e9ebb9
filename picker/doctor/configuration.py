"""Envoy's configuration as the checks want it: for each ext_proc filter, all that lies on a request's way through it.

Two sources have the same shape inside: a bootstrap file, and what `/config_dump` of a running Envoy says, in which what
came by xDS stands as well. Values stay the plain dictionaries of Envoy's own YAML, with its own field names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

FILTER = "ext_proc.v3.ExternalProcessor"
FULL_DUPLEX = "FULL_DUPLEX_STREAMED"
_MANAGER = "HttpConnectionManager"
_PER_ROUTE = "ext_proc.v3.ExtProcPerRoute"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_OVERRIDE_HOST = "override_host.v3.OverrideHost"


class NotEnvoys(ValueError):
    """Data that is no configuration of Envoy's."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Listeners as a list; clusters, and route tables that are not inside a listener, by name."""

    listeners: list[Json]
    clusters: Mapping[str, Json]
    route_tables: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of Envoy's."""

    config: Json

    @property
    def name(self) -> str:
        """As in the configuration."""
        return str(self.config["name"])

    @property
    def where(self) -> str:
        """To find it by."""
        return f"cluster {self.name}"

    @property
    def is_original_dst(self) -> bool:
        """Whether it connects to whatever address the request names."""
        return self.config.get("type") == "ORIGINAL_DST"

    @property
    def override_host(self) -> Json | None:
        """The load balancer that obeys picks, if it has it."""
        policies = self.config.get("load_balancing_policy", {}).get("policies", [])
        configs = (policy.get("typed_extension_config", {}).get("typed_config", {}) for policy in policies)
        return next((config for config in configs if is_a(config, _OVERRIDE_HOST)), None)

    @property
    def http2(self) -> Json:
        """Its HTTP/2 options; empty where all are at their defaults."""
        options = self.config.get("typed_extension_protocol_options", {}).get(_HTTP_OPTIONS, {})
        explicit = options.get("explicit_http_config", {}).get("http2_protocol_options")
        found: Json = explicit or self.config.get("http2_protocol_options") or {}
        return found


@dataclass(frozen=True, slots=True)
class Route:
    """A route that forwards, with the virtual host and the table that it stands in."""

    table: Json
    host: Json
    config: Json

    @property
    def action(self) -> Json:
        """Its `route` part."""
        action: Json = self.config["route"]
        return action

    @property
    def where(self) -> str:
        """To find it by."""
        return f"virtual host {self.host.get('name', '?')}, route {json.dumps(self.config.get('match', {}))}"

    @property
    def clusters(self) -> list[str]:
        """Names of the clusters that it may forward to."""
        weighted = self.action.get("weighted_clusters", {}).get("clusters", [])
        names = [self.action.get("cluster"), *(cluster.get("name") for cluster in weighted)]
        return [name for name in names if name]


@dataclass(frozen=True, slots=True)
class Way:
    """The way of a request through one ext_proc filter. A cluster that the configuration does not hold is left out.

    before: the HTTP filters that see the request earlier. picker: the cluster that the filter asks.
    """

    listener: Json
    manager: Json
    before: list[Json]
    ext_proc: Json
    routes: list[Route]
    workers: list[Cluster]
    picker: Cluster | None

    @property
    def where(self) -> str:
        """The filter, to find it by."""
        return f"{self.where_listener}, its ext_proc filter"

    @property
    def where_listener(self) -> str:
        """The listener, to find it by."""
        return f"listener {self.listener.get('name', '?')}"

    @property
    def where_manager(self) -> str:
        """The HTTP connection manager, to find it by."""
        return f"{self.where_listener}, its HTTP connection manager"

    @property
    def mode(self) -> Json:
        """The filter's processing mode."""
        mode: Json = self.ext_proc.get("processing_mode", {})
        return mode

    @property
    def request_body_mode(self) -> str:
        """Envoy's name for it."""
        return str(self.mode.get("request_body_mode", "NONE"))


def parse(data: Any) -> Configuration:
    """From a bootstrap or a configuration dump. Raises NotEnvoys for anything else."""
    data = _snake_case(data)
    if not isinstance(data, dict) or not ("configs" in data or "static_resources" in data):
        raise NotEnvoys("neither an Envoy bootstrap (static_resources) nor a configuration dump (configs)")
    if "configs" in data:
        return _from_dump(data["configs"])
    resources = data["static_resources"]
    return Configuration(resources.get("listeners", []), _by_name(resources.get("clusters", [])), {})


def ways(configuration: Configuration, picker: str | None = None) -> list[Way]:
    """Through every ext_proc filter that some route uses; `picker`: only through those that ask this cluster."""
    return [
        way
        for listener in configuration.listeners
        for manager in _managers(listener)
        for way in _ways_of(configuration, listener, manager)
        if picker is None or _asked(way.ext_proc) == picker
    ]


def is_a(config: Json, type_name: str) -> bool:
    """Whether a `typed_config` is of a type, given by the end of its name."""
    return str(config.get("@type", "")).endswith(type_name)


def _ways_of(configuration: Configuration, listener: Json, manager: Json) -> Iterator[Way]:
    filters = manager.get("http_filters", [])
    for number, http_filter in enumerate(filters):
        if not is_a(http_filter.get("typed_config", {}), FILTER):
            continue
        for config, routes in _variants(http_filter, _routes(configuration, manager)):
            names = dict.fromkeys(name for route in routes for name in route.clusters)
            yield Way(
                listener=listener,
                manager=manager,
                before=filters[:number],
                ext_proc=config,
                routes=routes,
                workers=[Cluster(configuration.clusters[name]) for name in names if name in configuration.clusters],
                picker=_cluster(configuration, _asked(config)),
            )


def _variants(http_filter: Json, routes: list[Route]) -> list[tuple[Json, list[Route]]]:
    """The filter's configuration as the routes see it, with the routes that see it so: a route may override parts."""
    if not routes:
        # They come by a discovery service that this source does not show.
        return [(http_filter["typed_config"], [])]
    variants: dict[str, tuple[Json, list[Route]]] = {}
    for route in routes:
        overrides = _overrides(route, http_filter)
        if overrides is not None:
            config = {**http_filter["typed_config"], **overrides}
            variants.setdefault(json.dumps(overrides, sort_keys=True), (config, []))[1].append(route)
    return list(variants.values())


def _overrides(route: Route, http_filter: Json) -> Json | None:
    """None where the filter is off. The most specific place wins; saying anything there turns a disabled filter on."""
    for place in (route.config, route.host, route.table):
        said = place.get("typed_per_filter_config", {}).get(http_filter.get("name"))
        if said is None:
            continue
        if said.get("disabled"):
            return None
        inner = said if is_a(said, _PER_ROUTE) else said.get("config", {})
        overrides: Json = inner.get("overrides", {})
        return overrides
    return None if http_filter.get("disabled") else {}


def _routes(configuration: Configuration, manager: Json) -> list[Route]:
    name = manager.get("rds", {}).get("route_config_name", "")
    table = manager.get("route_config") or configuration.route_tables.get(name, {})
    return [
        Route(table, host, route)
        for host in table.get("virtual_hosts", [])
        for route in host.get("routes", [])
        if "route" in route
    ]


def _managers(listener: Json) -> Iterator[Json]:
    chains = [*listener.get("filter_chains", []), listener.get("default_filter_chain", {})]
    for chain in chains:
        configs = (part.get("typed_config", {}) for part in chain.get("filters", []))
        yield from (config for config in configs if is_a(config, _MANAGER))


def _asked(ext_proc: Json) -> str:
    return str(ext_proc.get("grpc_service", {}).get("envoy_grpc", {}).get("cluster_name", ""))


def _cluster(configuration: Configuration, name: str) -> Cluster | None:
    return Cluster(configuration.clusters[name]) if name in configuration.clusters else None


def _from_dump(configs: list[Json]) -> Configuration:
    sections = {config["@type"].rsplit(".", 1)[-1]: config for config in configs}
    listeners = sections.get("ListenersConfigDump", {})
    clusters = sections.get("ClustersConfigDump", {})
    routes = sections.get("RoutesConfigDump", {})
    active = (item.get("active_state", {}) for item in listeners.get("dynamic_listeners", []))
    return Configuration(
        listeners=[
            item["listener"] for item in (*listeners.get("static_listeners", []), *active) if "listener" in item
        ],
        clusters=_by_name(
            item["cluster"]
            for group in ("static_clusters", "dynamic_active_clusters")
            for item in clusters.get(group, [])
        ),
        route_tables=_by_name(item["route_config"] for item in routes.get("dynamic_route_configs", [])),
    )  # fmt: skip


def _by_name(items: Any) -> dict[str, Json]:
    return {item.get("name", ""): item for item in items}


def _snake_case(data: Any) -> Any:
    """Envoy takes field names in both of protobuf's spellings."""
    if isinstance(data, dict):
        return {_field_name(str(key)): _snake_case(value) for key, value in data.items()}
    return [_snake_case(item) for item in data] if isinstance(data, list) else data


def _field_name(key: str) -> str:
    # A name with dots is no field but an extension's, which may well have capitals.
    return key if "." in key else re.sub(r"(?<=[a-z0-9])[A-Z]", lambda found: "_" + found[0].lower(), key)
