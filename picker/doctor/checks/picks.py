"""Whether workers are chosen by the picker's word, and by nobody else's."""

from __future__ import annotations

from collections.abc import Iterator

from picker.doctor import remedies
from picker.doctor.configuration import Cluster, Json, Route, Way, is_a
from picker.doctor.finding import Finding, Severity
from picker.extproc.wire.names import DESTINATION, LB


def header_strip(way: Way) -> Iterator[Finding]:
    """Whatever the picker does not overwrite must not come from a client."""
    mutations = [mutation for config in _early_mutations(way) for mutation in config]
    if any(str(mutation.get("remove", "")).lower() == DESTINATION for mutation in mutations):
        return
    any_address = any(cluster.is_original_dst for cluster in way.workers)
    yield Finding(
        check="header-strip",
        severity=Severity.ERROR if any_address else Severity.WARNING,
        where=way.where_manager,
        what=f"a client's own {DESTINATION} header is let in",
        causes="whenever the picker does not overwrite it, the client chooses "
        + ("any address in your network (SSRF)" if any_address else "the worker"),
        fix=remedies.HEADER_STRIP,
    )


def late_header_strip(way: Way) -> Iterator[Finding]:
    """The router removes these headers after ext_proc has set them."""
    for route in way.routes:
        if place := _removes_pick(route):
            yield Finding(
                check="late-header-strip",
                severity=Severity.ERROR,
                where=place,
                what=f"request_headers_to_remove names {DESTINATION}",
                causes="it runs after the picker: it removes the pick itself",
                fix="take it out there, and use the connection manager's early_header_mutation_extensions instead",
            )


def override_source(way: Way) -> Iterator[Finding]:
    """A cluster that does not look at the pick balances as it likes, without a word."""
    for cluster in way.workers:
        if not cluster.is_original_dst and not any(_is_pick(source) for source in _sources(cluster)):
            yield Finding(
                check="override-source",
                severity=Severity.ERROR,
                where=cluster.where,
                what=f"its load balancer does not read {DESTINATION}",
                causes="picks are ignored, and requests spread as if there were no picker",
                fix=remedies.OVERRIDE_HOST,
            )


def original_dst_list(way: Way) -> Iterator[Finding]:
    """It takes one address; the picker names up to three."""
    for cluster in way.workers:
        source = cluster.config.get("original_dst_lb_config", {})
        if cluster.is_original_dst and "metadata_key" not in source:
            yield Finding(
                check="original-dst-list",
                severity=Severity.ERROR,
                where=cluster.where,
                what=f"ORIGINAL_DST reads the header {source.get('http_header_name', '(none)')} as it is",
                causes="the picker names fallbacks too; ORIGINAL_DST answers a list with 503",
                fix=remedies.FIRST_OF_LIST,
            )


def metadata_namespace(way: Way) -> Iterator[Finding]:
    """Envoy drops metadata in namespaces that it was not told to take."""
    namespaces = way.ext_proc.get("metadata_options", {}).get("receiving_namespaces", {}).get("untyped", [])
    if LB not in namespaces:
        yield Finding(
            check="metadata-namespace",
            severity=Severity.WARNING,
            where=way.where,
            what=f"metadata_options.receiving_namespaces does not hold {LB}",
            causes="Envoy drops the pick's copy in dynamic metadata; load balancers and logs that read it see nothing",
            fix="metadata_options: {receiving_namespaces: {untyped: [envoy.lb]}}",
        )


def route_retry(way: Way) -> Iterator[Finding]:
    """Each retry takes the next endpoint of the pick."""
    overridden = {cluster.name for cluster in way.workers if cluster.override_host}
    for route in way.routes:
        policy = route.action.get("retry_policy") or route.host.get("retry_policy")
        if not policy and overridden.intersection(route.clusters):
            yield Finding(
                check="route-retry",
                severity=Severity.WARNING,
                where=route.where,
                what="no retry_policy",
                causes="the picker's fallbacks are never used: a worker that is gone is an error for the client",
                fix=remedies.ROUTE_RETRY,
            )


def _early_mutations(way: Way) -> Iterator[list[Json]]:
    """Of the connection manager, and of header_mutation filters before ext_proc."""
    for extension in way.manager.get("early_header_mutation_extensions", []):
        yield extension.get("typed_config", {}).get("mutations", [])
    for http_filter in way.before:
        mutations = http_filter.get("typed_config", {}).get("mutations", {})
        if is_a(http_filter.get("typed_config", {}), "header_mutation.v3.HeaderMutation"):
            yield mutations.get("request_mutations", [])


def _removes_pick(route: Route) -> str | None:
    places = {
        f"route table {route.table.get('name', '?')}": route.table,
        f"virtual host {route.host.get('name', '?')}": route.host,
        route.where: route.config,
    }
    removed = {where: place.get("request_headers_to_remove", []) for where, place in places.items()}
    return next((where for where, names in removed.items() if DESTINATION in map(str.lower, names)), None)


def _sources(cluster: Cluster) -> list[Json]:
    sources: list[Json] = (cluster.override_host or {}).get("override_host_sources", [])
    return sources


def _is_pick(source: Json) -> bool:
    metadata = source.get("metadata", {})
    path = [step.get("key") for step in metadata.get("path", [])]
    return str(source.get("header", "")).lower() == DESTINATION or (metadata.get("key"), path) == (LB, [DESTINATION])
