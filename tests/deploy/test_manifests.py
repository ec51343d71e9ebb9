"""Everything in deploy/ renders, has the shape that Kubernetes expects, and holds what it should."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

from picker.agent.config import AgentConfig
from picker.config import Config
from picker.config_checks import check as check_config
from picker.config_files import parse
from tests.deploy import custom_resources
from tests.deploy.render import BASE, CHART, ROOT, Manifest, base, chart, documents, kustomize

KUBERNETES = "1.31"
GATEWAYS = sorted((ROOT / "deploy" / "gateways").glob("*.yaml"))
SCALING = sorted((ROOT / "deploy" / "scaling").glob("*.yaml"))
VALUES: dict[str, Manifest] = {
    "defaults": {},
    "everything on": {
        "image": {"repository": "r", "tag": "t", "pullSecrets": [{"name": "s"}]},
        "picker": {
            "config": {"policy": "random", "tokenizers": {"m": "/models/m"}},
            "tls": {"enabled": True, "secretName": "cert"},
            "drain": {"waitSeconds": 2.5, "seconds": 30},
            "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
            "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "podAnnotations": {"x": "y"},
            "keda": {"enabled": True},
            "service": {"type": "LoadBalancer", "annotations": {"x": "y"}},
            "autoscaling": {"enabled": True},
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        },
        "agent": {"namespace": "models", "kubernetes": {"labels": {"zone": "zone"}}, "config": {"stall_after_s": 5.0}},
        "networkPolicy": {
            "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}],
            "metricsFrom": [{"podSelector": {"matchLabels": {"a": "b"}}}],
        },
        "inferencePool": {"enabled": True, "discovery": True, "targetPorts": [8000, 8001]},
        "gateway": "istio",
    },
    "Redis of one's own": {
        "redis": {
            "url": "rediss+sentinel://s1:26379,s2:26379/main/0",
            "pickerUser": "picker",
            "agentUser": "agent",
            "passwordSecret": {"name": "redis", "key": "password"},
            "tlsSecret": {"name": "redis-tls", "ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"},
        },
        "agent": {"enabled": False},
    },
    "GKE, plain text, few extras": {
        "picker": {"tls": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
        "networkPolicy": {"enabled": False},
        "inferencePool": {"enabled": True},
        "gateway": "gke",
    },
}


def check(manifest: Manifest) -> None:
    if custom_resources.is_known(manifest):
        custom_resources.check(manifest)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.fixture(params=VALUES.values(), ids=list(VALUES))
def rendered(request: pytest.FixtureRequest) -> list[Manifest]:
    return chart(request.param)


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    [found] = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    return (each["spec"]["template"] for each in manifests if each["kind"] == "Deployment")


def test_the_chart_renders_valid_objects(rendered: list[Manifest]) -> None:
    for manifest in rendered:
        check(manifest)
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered]
    assert len(names) == len(set(names))


def test_the_files_in_its_config_maps_are_those_of_picker_and_agent(rendered: list[Manifest]) -> None:
    files = [item for each in rendered if each["kind"] == "ConfigMap" for item in each["data"].items()]
    for name, text in files:
        config = parse(text, AgentConfig if name == "agent.yaml" else Config, name)
        if isinstance(config, Config):
            check_config(config)
    assert "picker.yaml" in dict(files)


def test_no_container_may_more_than_it_needs(rendered: list[Manifest]) -> None:
    for pod in pods(rendered):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
POOL = {
    "apiGroups": ["inference.networking.k8s.io"],
    "resources": ["inferencepools"],
    "resourceNames": ["default"],
    "verbs": ["list", "watch"],
}


def test_an_agent_may_see_pods_a_picker_that_discovers_its_pool_too_and_nobody_more(rendered: list[Manifest]) -> None:
    trusted = [pod for pod in pods(rendered) if pod["spec"]["automountServiceAccountToken"]]
    names = {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in trusted}
    rules = {each["metadata"]["name"]: each["rules"] for each in rendered if each["kind"] == "Role"}
    granted = {"picker": [POOL, PODS], "picker-agent": [PODS]}
    assert rules == {name: granted[name] for name in names}
    assert {pod["spec"]["serviceAccountName"] for pod in trusted} == names
    assert not [each for each in rendered if each["kind"].startswith("ClusterRole")]


def test_a_picker_discovers_the_pool_of_its_name_only_where_it_has_the_right() -> None:
    for values in ({}, {"inferencePool": {"discovery": True}, "pool": "mine"}):
        manifests = chart(values)
        config = yaml.safe_load(one(manifests, "ConfigMap", "picker")["data"]["picker.yaml"])
        roles = [each for each in manifests if each["kind"] == "Role" and each["metadata"]["name"] == "picker"]
        assert ("kubernetes" in config) == bool(values) == bool(roles)
        if roles:
            assert config["kubernetes"] == {"namespace": "picker"}
            assert roles[0]["rules"][0]["resourceNames"] == [config["pool"]] == ["mine"]


def test_selectors_find_the_pods_that_they_mean(rendered: list[Manifest]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(rendered)]
    for manifest in rendered:
        if manifest["kind"] == "Service":
            wanted = manifest["spec"]["selector"]
        elif manifest["kind"] in ("Deployment", "PodDisruptionBudget"):
            wanted = manifest["spec"]["selector"]["matchLabels"]
        elif manifest["kind"] == "NetworkPolicy":
            wanted = manifest["spec"]["podSelector"]["matchLabels"]
        else:
            continue
        assert sum(wanted.items() <= each.items() for each in labels) == 1, manifest["metadata"]["name"]


def test_pods_outlive_their_drain() -> None:
    manifests = chart({"picker": {"drain": {"waitSeconds": 7.5, "seconds": 30}}})
    config = yaml.safe_load(one(manifests, "ConfigMap", "picker")["data"]["picker.yaml"])
    grace = one(manifests, "Deployment", "picker")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert (config["drain_wait_s"], config["drain_s"]) == (7.5, 30)
    assert grace > config["drain_wait_s"] + config["drain_s"]


def test_a_redis_of_ones_own_is_reached_with_its_files_and_the_bundled_one_is_not_made() -> None:
    manifests = chart(VALUES["Redis of one's own"])
    redis = yaml.safe_load(one(manifests, "ConfigMap", "picker")["data"]["picker.yaml"])["redis"]
    spec = one(manifests, "Deployment", "picker")["spec"]["template"]["spec"]
    mounts = [each["mountPath"] for each in spec["containers"][0]["volumeMounts"]]
    for file in (redis["password_file"], redis["ca"], redis["cert"], redis["key"]):
        assert any(file.startswith(f"{mount}/") for mount in mounts), file
    assert redis["username"] == "picker"
    assert not [each for each in manifests if "redis" in each["metadata"]["name"]]


def test_hpa_and_replicas_do_not_fight() -> None:
    manifests = chart({"picker": {"autoscaling": {"enabled": True}}})
    assert "replicas" not in one(manifests, "Deployment", "picker")["spec"]


def test_the_pool_names_the_pickers_service_and_port() -> None:
    manifests = chart({"inferencePool": {"enabled": True}})
    reference = one(manifests, "InferencePool", "default")["spec"]["endpointPickerRef"]
    service = one(manifests, "Service", reference["name"])
    assert reference["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"pickr": {}}, "pickr"),
        ({"picker": {"replicas": 0}}, "replicas"),
        ({"picker": {"config": {"listen": "x"}}}, "listen"),
        ({"redis": {"url": "http://x"}}, "url"),
        ({"redis": {"bundled": {"enabled": False}}}, "set url, or bundled.enabled"),
        ({"redis": {"pickerUser": "u"}}, "a user needs passwordSecret.name"),
        ({"inferencePool": {"targetPorts": list(range(1, 10))}}, "targetPorts"),
        ({"gateway": "kong"}, "gateway"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: Manifest, expected: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(expected)):
        chart(values)


def test_the_chart_passes_helms_lint() -> None:
    report = helm_python.lint(CHART, strict=False)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


def test_the_kustomize_base_is_the_chart() -> None:
    assert BASE.read_text() == base(), "run: python -m tests.deploy.render"
    for manifest in kustomize(BASE.parent):
        check(manifest)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "picker"


def test_an_overlay_changes_what_it_says() -> None:
    manifests = kustomize(ROOT / "deploy" / "kustomize" / "example")
    for manifest in manifests:
        check(manifest)
    deployment = one(manifests, "Deployment", "picker")
    assert deployment["spec"]["replicas"] == 3
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "registry.example.com/envoy-picker:0.1.0"
    parse(one(manifests, "ConfigMap", "picker-agent")["data"]["agent.yaml"], AgentConfig, "agent.yaml")


def test_the_sidecar_is_put_beside_a_worker(tmp_path: Path) -> None:
    worker = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm", "labels": {"app": "vllm"}},
        "spec": {
            "selector": {"matchLabels": {"app": "vllm"}},
            "template": {
                "metadata": {"labels": {"app": "vllm"}},
                "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai"}]},
            },
        },
    }
    (tmp_path / "worker.yaml").write_text(yaml.safe_dump(worker))
    # kustomize takes relative paths only.
    component = os.path.relpath(ROOT / "deploy" / "kustomize" / "agent-sidecar", tmp_path.resolve())
    kustomization = {"resources": ["worker.yaml"], "components": [component]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    [manifest] = kustomize(tmp_path)
    check(manifest)
    spec = manifest["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"]] == ["vllm"]
    [sidecar] = spec["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("picker-agent", "Always")


@pytest.mark.parametrize("path", GATEWAYS, ids=lambda path: path.stem)
def test_a_gateways_manifests_have_the_shapes_of_their_kinds(path: Path) -> None:
    manifests = documents(path.read_text())
    for manifest in manifests:
        check(manifest)
    names = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    for target in _targets(manifests):
        assert target in names or target[0] in ("Service", "InferencePool"), target


@pytest.mark.parametrize("path", GATEWAYS, ids=lambda path: path.stem)
def test_a_gateways_manifests_fit_the_chart_with_the_values_that_they_name(path: Path) -> None:
    text = path.read_text()
    found = re.search(r"helm install picker deploy/helm/picker(.*)", text)
    if not found:
        return
    values: Manifest = {}
    for setting in found[1].split("--set ")[1:]:
        key, _, value = setting.strip().partition("=")
        _put(values, key.split("."), yaml.safe_load(value))
    made = {(each["kind"], each["metadata"]["name"]) for each in chart(values)}
    wanted = {("InferencePool", "default")} if "InferencePool, name" in text else {("Service", "picker")}
    assert wanted <= made


@pytest.mark.parametrize("path", SCALING, ids=lambda path: path.stem)
def test_the_examples_for_autoscalers_have_the_shapes_of_their_kinds(path: Path) -> None:
    [manifest] = documents(path.read_text())
    check(manifest)
    assert (
        "picker_scaling_desired_workers" in path.read_text()
        or "scalerAddress: picker.picker.svc:9004" in path.read_text()
    )


def test_keda_finds_the_port_that_the_picker_listens_on() -> None:
    manifests = chart({"picker": {"keda": {"enabled": True}, "config": {"scaling": {"least": 0, "idle_s": 600.0}}}})
    text = one(manifests, "ConfigMap", "picker")["data"]["picker.yaml"]
    config = parse(text, Config, "picker.yaml")
    assert (config.scaling.keda, config.scaling.least, config.scaling.idle_s) == ("0.0.0.0:9004", 0, 600.0)
    ports = one(manifests, "Service", "picker")["spec"]["ports"]
    assert {"name": "keda", "port": 9004, "targetPort": "keda"} in ports


@pytest.mark.parametrize("change", [("spec", "targetPort"), ("spec", "endpointPickerRef", "nmae")])
def test_the_check_of_shapes_finds_a_misspelling(change: tuple[str, ...]) -> None:
    manifest = one(chart({"inferencePool": {"enabled": True}}), "InferencePool", "default")
    _put(manifest, list(change), "x")
    with pytest.raises(jsonschema.ValidationError):
        check(manifest)


def _put(tree: Manifest, path: list[str], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _targets(manifests: list[Manifest]) -> Iterator[tuple[str, str]]:
    for manifest in manifests:
        spec = manifest["spec"]
        for target in (*spec.get("targetRefs", ()), *([spec["targetRef"]] if "targetRef" in spec else ())):
            if manifest["kind"] != "EnvoyPatchPolicy":
                yield target["kind"], target["name"]
        for parent in spec.get("parentRefs", ()):
            yield "Gateway", parent["name"]
