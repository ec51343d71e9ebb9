"""EndpointPickerConfig files: the reference endpoint picker's plugins and weights (llm-d.ai/v1alpha1 and before).

Its scores are weighted and summed; ours are seconds. So weights do not come over, limits and filters do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from picker.migrate.durations import duration_s
from picker.migrate.imported import Imported

KIND = "EndpointPickerConfig"
_DELAY = "part of the policy expected-delay, which counts it in seconds"
_NOT_YET = "has no counterpart; left out"

_SAME: Mapping[str, str] = {
    "queue-scorer": f"{_DELAY}: what waits is prefill to be done first",
    "running-requests-size-scorer": _DELAY,
    "kv-cache-utilization-scorer": f"{_DELAY}: what a prompt would displace; a hard cap is profiles[].limits.kv_used",
    "kv-cache-scorer": f"{_DELAY}: what a prompt would displace; a hard cap is profiles[].limits.kv_used",
    "load-aware-scorer": _DELAY,
    "active-request-scorer": f"{_DELAY}: what pickers have in flight, shared among all of them",
    "token-load-scorer": f"{_DELAY}: prefill tokens in flight",
    "prefix-cache-scorer": f"{_DELAY}: a cached token is one not to be computed",
    "precise-prefix-cache-scorer": f"{_DELAY}; agents hear the KV events, and the engine's block size and seed do not"
    " matter",
    "no-hit-lru-scorer": f"{_DELAY}: cold prompts go where they displace least",
    "lora-affinity-scorer": "an adapter that is loaded costs nothing, another worker_model.adapter_load_s",
    "latency-scorer": _DELAY,
    "predicted-latency-producer": "speeds are learnt from the workers, without a sidecar",
    "mm-embeddings-cache-scorer": _NOT_YET,
    "session-affinity-scorer": "a conversation stays where its prefix is cached; policy session-hash pins it",
    "session-affinity-filter": "a conversation stays where its prefix is cached; policy session-hash pins it",
    "approx-prefix-cache-producer": "for workers without KV events; built in",
    "precise-prefix-cache-producer": "agents hear the KV events; the block size and seed of the engine do not matter",
    "token-producer": "give the tokenizer's folder in `tokenizers`; nothing is asked over HTTP",
    "inflight-load-producer": "built in, and shared among pickers",
    "decode-filter": "workers of both kinds are one pool; disaggregated prefill is not known",
    "prefill-filter": "disaggregated prefill is not known",
    "encode-filter": "disaggregated encoding is not known",
    "disagg-profile-handler": "disaggregated prefill is not known",
    "pd-profile-handler": "disaggregated prefill is not known",
    "context-length-aware": "use profiles with match.min_prompt_tokens and require",
    "header-label-affinity-scorer": "use requirement_headers, or profiles with prefer",
    "metrics-data-source": "agents ask the engines",
    "core-metrics-extractor": "agents ask the engines",
    "random-picker": "policy random",
    "weighted-random-picker": "equals are drawn at random; else the least cost wins",
    "header-based-testing-filter": "the setting conformance; never in production",
    **dict.fromkeys(
        ("max-score-picker", "max-score", "single-profile-handler", "single-profile", "openai-parser",
         "anthropic-parser", "vllmhttp-parser", "passthrough-parser"),
        "",
    ),
}  # fmt: skip


def read(config: Mapping[str, Any], source: str) -> Imported:
    """Ours from theirs, parsed."""
    imported = Imported(source)
    plugins = {_name(plugin): plugin for plugin in _list(config, "plugins")}
    for name, plugin in plugins.items():
        _plugin(imported, f"plugins[{name}]", plugin)
    for profile in _list(config, "schedulingProfiles"):
        _weights(imported, profile, plugins)
    _flow_control(imported, config.get("flowControl"))
    for key in sorted(set(config) - _READ):
        imported.note(key, _NOT_YET)
    return imported


_READ = {"apiVersion", "kind", "metadata", "plugins", "schedulingProfiles", "flowControl", "featureGates", "dataLayer",
         "data", "requestHandler", "parser"}  # fmt: skip


def _plugin(imported: Imported, where: str, plugin: Mapping[str, Any]) -> None:
    kind, parameters = str(plugin.get("type", "")), _mapping(plugin, "parameters")
    if reader := _READERS.get(kind):
        reader(imported, where, parameters)
    elif kind not in _SAME:
        imported.note(where, f"{kind!r} {_NOT_YET}")
    elif _SAME[kind]:
        imported.note(where, _SAME[kind])
    if kind == "random-picker":
        imported.set("policy", "random")


def _max_score(imported: Imported, where: str, parameters: Mapping[str, Any]) -> None:
    """Their list of endpoints is the first and its fallbacks."""
    most = parameters.get("maxNumOfEndpoints", 1)
    if isinstance(most, int) and 1 <= most <= 16:
        imported.set("fallbacks", most - 1)
    else:
        imported.note(where, f"maxNumOfEndpoints {most!r} is not from 1 to 16; left out")


def _by_label(imported: Imported, where: str, parameters: Mapping[str, Any]) -> None:
    labels = {str(name): [str(value)] for name, value in _mapping(parameters, "matchLabels").items()}
    for expression in _list(parameters, "matchExpressions"):
        if expression.get("operator") == "In":
            labels[str(expression.get("key"))] = [str(value) for value in expression.get("values") or ()]
        else:
            imported.note(where, f"matchExpressions with {expression.get('operator')!r} {_NOT_YET}")
    if labels:
        _profile(imported).setdefault("require", {}).update(labels)
        imported.note(where, "became profiles[0].require; agents give workers their labels")


_LIMITS = {"active-requests": "running", "running-requests": "running", "waiting-queue": "waiting",
           "kv-cache-utilization": "kv_used"}  # fmt: skip


def _utilization(imported: Imported, where: str, parameters: Mapping[str, Any]) -> None:
    limits = {}
    for condition in _list(parameters, "conditions"):
        name = _LIMITS.get(str(condition.get("type") or condition.get("metric")))
        value = condition.get("threshold", condition.get("max"))
        if name and isinstance(value, int | float) and value > 0:
            limits[name] = value if name == "kv_used" else int(value)
        else:
            imported.note(where, f"condition {dict(condition)} {_NOT_YET}")
    if limits:
        _profile(imported)["limits"] = limits
        imported.note(where, "became profiles[0].limits; a worker beyond them gets nothing more")


def _saturation(imported: Imported, where: str, parameters: Mapping[str, Any]) -> None:
    imported.note(where, "what waits is a matter of admission: docs/admission.md")


_READERS: Mapping[str, Callable[[Imported, str, Mapping[str, Any]], None]] = {
    "max-score-picker": _max_score,
    "label-selector-filter": _by_label,
    "by-label-selector": _by_label,
    "by-label": _by_label,
    "utilization-filter": _utilization,
    "utilization-detector": _saturation,
    "concurrency-detector": _saturation,
}


def _weights(imported: Imported, profile: Mapping[str, Any], plugins: Mapping[str, Any]) -> None:
    name = profile.get("name", "default")
    weighted = [str(each.get("pluginRef")) for each in _list(profile, "plugins") if "weight" in each]
    if unknown := [
        ref for ref in (str(each.get("pluginRef")) for each in _list(profile, "plugins")) if ref not in plugins
    ]:
        imported.note(f"schedulingProfiles[{name}]", f"names plugins that are not there: {', '.join(unknown)}")
    if weighted:
        imported.note(
            f"schedulingProfiles[{name}]",
            f"the weights of {', '.join(weighted)} have no meaning here: costs are seconds and need none. The same "
            "weighted sum is there as policy llm-d, to compare with",
        )


def _flow_control(imported: Imported, flow: Any) -> None:
    if not isinstance(flow, Mapping):
        return
    ttl = flow.get("defaultRequestTTL")
    if ttl is not None:
        try:
            imported.note("flowControl.defaultRequestTTL", f"{duration_s(str(ttl)):g} s; {_WAITING}")
        except ValueError as error:
            imported.note("flowControl.defaultRequestTTL", str(error))
    for key in sorted(set(flow) - {"defaultRequestTTL"}):
        imported.note(f"flowControl.{key}", _WAITING)


_WAITING = "waiting and priorities are settings of their own: docs/admission.md"


def _profile(imported: Imported) -> dict[str, Any]:
    profiles: list[dict[str, Any]] = imported.settings.setdefault("profiles", [{"name": "imported"}])
    return profiles[0]


def _name(plugin: Mapping[str, Any]) -> str:
    return str(plugin.get("name") or plugin.get("type"))


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(config: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = config.get(key)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
