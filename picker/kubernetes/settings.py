"""Which InferencePool a picker serves, and how to find out what is in it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Group = Literal["inference.networking.k8s.io", "inference.networking.x-k8s.io"]
VERSIONS: dict[str, str] = {"inference.networking.k8s.io": "v1", "inference.networking.x-k8s.io": "v1alpha2"}


class KubernetesPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The InferencePool whose pods are the workers. Needs the extra `kubernetes`.

    inference_pool: its name; by default that of `pool`.
    namespace: where it and its pods are; by default that of the picker's own pod.
    group: of its API; the older one, inference.networking.x-k8s.io, is read as v1alpha2.
    max_workers: endpoints of it; the rest is left out, and the log says so.
    relist_s: everything is listed anew so often, in case a change was missed.
    kubeconfig: a file, for a picker that does not run in the cluster.
    """

    inference_pool: str = ""
    namespace: str = ""
    group: Group = "inference.networking.k8s.io"
    max_workers: Annotated[int, msgspec.Meta(gt=0)] = 4096
    relist_s: Annotated[int, msgspec.Meta(gt=0)] = 300
    kubeconfig: str = ""
