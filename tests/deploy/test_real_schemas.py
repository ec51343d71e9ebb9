"""The custom resources in deploy/ against the projects' own CRDs, as far as a package carries them.

Of Envoy Gateway's kinds and of InferencePool there is no package: for these there is `custom_resources` alone. That
also refuses fields that do not exist, which these validators, like the API server, let pass.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.deploy import custom_resources
from tests.deploy.render import Manifest, chart, documents
from tests.deploy.test_manifests import GATEWAYS, SCALING, VALUES

FOLDER = os.environ.get("PICKER_SCHEMAS")
"""As tests/fetch_schemas.sh fills it."""
SCRIPT = Path(__file__).with_name("real_schemas.cjs")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="set PICKER_SCHEMAS to what tests/fetch_schemas.sh fills")


def resources() -> list[Manifest]:
    files = [each for path in (*GATEWAYS, *SCALING) for each in documents(path.read_text())]
    rendered = [each for values in VALUES.values() for each in chart(values)]
    return [each for each in (*files, *rendered) if custom_resources.is_known(each)]


def faults(objects: list[Manifest]) -> list[list[str] | None]:
    done = subprocess.run(
        ["node", str(SCRIPT), str(FOLDER)], input=json.dumps(objects), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str] | None] = json.loads(done.stdout)
    return found


def test_they_fit_the_schemas_of_their_projects() -> None:
    objects = resources()
    kinds = {each["kind"]: fault for each, fault in zip(objects, faults(objects), strict=True)}
    unknown = {
        "InferencePool",
        "EnvoyExtensionPolicy",
        "BackendTrafficPolicy",
        "ClientTrafficPolicy",
        "EnvoyPatchPolicy",
    }
    assert {kind for kind, fault in kinds.items() if fault is None} == unknown
    assert {kind: fault for kind, fault in kinds.items() if fault} == {}
    assert len(kinds) == len(unknown) + 7


def test_the_schemas_find_what_is_wrong() -> None:
    objects = [each for each in copy.deepcopy(resources()) if each["kind"] == "HTTPRoute"]
    for each in objects:
        each["spec"]["rules"][0]["matches"][0]["path"]["type"] = "Suffix"
    assert all(faults(objects))
