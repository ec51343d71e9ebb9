"""Objects of the API, as far as they matter here, and collections of them that follow a watch. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T", bound="Object")
_ENDED = ("Failed", "Succeeded")


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Who an object is. A name may be given to another object later; a uid is not."""

    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class Object(msgspec.Struct, frozen=True, rename="camel"):
    """What all kinds have."""

    metadata: Metadata


class Condition(msgspec.Struct, frozen=True):
    """One of a pod's."""

    type: str
    status: str


class Container(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of a pod's container that runs, or did."""

    restart_count: int = 0


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """How a pod is."""

    pod_ip: str = msgspec.field(default="", name="podIP")
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[Container, ...] = ()


class Pod(Object, frozen=True, rename="camel"):
    """A pod."""

    status: PodStatus = PodStatus()

    @property
    def host(self) -> str:
        """Its address, IPv6 in brackets; "" while it has none."""
        ip = self.status.pod_ip
        return f"[{ip}]" if ":" in ip else ip

    @property
    def is_leaving(self) -> bool:
        """Whether it has been told to end. It may still be ready, and serves what it has."""
        return self.metadata.deletion_timestamp is not None

    @property
    def has_ended(self) -> bool:
        """Whether it will not serve any more."""
        return self.status.phase in _ENDED

    @property
    def is_ready(self) -> bool:
        """Whether Kubernetes would send it requests."""
        is_said = any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)
        return is_said and not self.is_leaving and not self.has_ended

    @property
    def restarts(self) -> int:
        """Of all its containers: with each one a cache may have begun anew."""
        return sum(each.restart_count for each in self.status.container_statuses)


class TargetPort(msgspec.Struct, frozen=True):
    """A port of each pod of an InferencePool."""

    number: int


class PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    """v1 has `targetPorts` and `matchLabels` in `selector`; v1alpha2 `targetPortNumber`, and the labels themselves."""

    selector: dict[str, str | dict[str, str]] = {}
    target_ports: tuple[TargetPort, ...] = ()
    target_port_number: int | None = None


class InferencePool(Object, frozen=True, rename="camel"):
    """An InferencePool of either version."""

    spec: PoolSpec = PoolSpec()

    @property
    def selector(self) -> str:
        """The labels of its pods, as a query has them."""
        labels = self.spec.selector.get("matchLabels", self.spec.selector)
        return ",".join(f"{name}={value}" for name, value in sorted(labels.items())) if isinstance(labels, dict) else ""

    @property
    def ports(self) -> tuple[int, ...]:
        """At each pod's address: every one is an endpoint."""
        older = () if self.spec.target_port_number is None else (self.spec.target_port_number,)
        return tuple(port.number for port in self.spec.target_ports) or older


class Objects(Generic[T]):
    """The objects of a kind that a query selects, by name."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}

    def __repr__(self) -> str:
        return f"<Objects {sorted(self._objects)}>"

    def all(self) -> list[T]:
        """As they are now."""
        return list(self._objects.values())

    def replace(self, objects: list[T]) -> None:
        """These are all there are."""
        self._objects = {each.metadata.name: each for each in objects}

    def apply(self, kind: str, changed: T) -> None:
        """An event of a watch: ADDED, MODIFIED or DELETED."""
        name = changed.metadata.name
        known = self._objects.get(name)
        if kind != "DELETED":
            self._objects[name] = changed
        # The name may be a new object's by now.
        elif known is not None and known.metadata.uid == changed.metadata.uid:
            del self._objects[name]
