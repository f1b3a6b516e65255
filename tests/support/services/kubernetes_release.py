"""A release of the chart on a real API server: what a cluster has before it, and objects that the server can know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from ruamel.yaml import YAML
from tests.support.services.helm_chart import Manifest, needs_helm, of_kind, read_yaml, rendered
from tests.support.services.kubernetes_api import Server
from tests.support.services.kubernetes_programs import PROGRAMS, api_server

DEFINITIONS = PROGRAMS.parent / "definitions"
"""A developer may put the CustomResourceDefinitions of other projects here, each in a file of its own."""
OF_OTHERS = {"Certificate", "PrometheusRule", "ScaledObject", "ServiceMonitor", "SparkApplication"}
PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "high"},
    "value": 1000,
}
"""What a set of values names that a cluster has."""
RESTRICTED = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn", "audit")}
MAKERS = ("Deployment", "StatefulSet")
SCALER = "HorizontalPodAutoscaler"

_NUMBERS = count()


@contextmanager
def cluster(folder: Path) -> Iterator[Server]:
    """A server that knows the kinds whose definitions are there; skips the test where there is no server or no Helm."""
    needs_helm()
    with api_server(folder) as server:
        for file in sorted(DEFINITIONS.glob("*.yaml")):
            server.define(read_yaml(file))
        server.apply(PRIORITY, "")
        yield server


def fresh_namespace(server: Server) -> str:
    """One that lets only restricted pods in."""
    return server.make_namespace(f"understudy-{next(_NUMBERS)}", RESTRICTED)


def written(server: Server, name: str) -> list[tuple[str, Manifest]]:
    """The objects of a set of values that the server can know, as they are written and as data."""
    parts = rendered(name).split("---\n")
    found = [(part, each) for part in parts if (each := YAML(typ="safe").load(part)) is not None]
    there = {id(each) for each in known(server, (each for _, each in found))}
    return [pair for pair in found if id(pair[1]) in there]


def known(server: Server, objects: Iterable[Manifest]) -> list[Manifest]:
    """Those whose kind the server has a definition of; accounts come first, as Helm has it."""
    found = [each for each in objects if each["kind"] not in OF_OTHERS or server.knows(each)]
    return sorted(found, key=lambda each: each["kind"] != "ServiceAccount")


def apply_all(server: Server, objects: Iterable[Manifest], namespace: str) -> list[str]:
    """Apply them, and return what the server warns of. Raises RefusedError."""
    return [said for each in known(server, objects) for said in server.apply(each, namespace)[1]]


def pods_there(server: Server, namespace: str) -> Counter[str]:
    """How many pods each Deployment or StatefulSet has made."""
    return Counter(_maker(pod) for pod in server.of_kind("v1", "Pod", namespace))


def pods_wanted(objects: list[Manifest]) -> Counter[str]:
    """How many it shall make; of routers, as many as their autoscaler wants at least."""
    least = {each["spec"]["scaleTargetRef"]["name"]: each["spec"]["minReplicas"] for each in of_kind(objects, SCALER)}
    makers = {each["metadata"]["name"]: each for kind in MAKERS for each in of_kind(objects, kind)}
    return Counter({name: least.get(name, each["spec"].get("replicas", 1)) for name, each in makers.items()})


def refusals(server: Server, namespace: str) -> list[str]:
    """What controllers could not make, and why."""
    return [each["message"] for each in server.of_kind("v1", "Event", namespace) if each["reason"] == "FailedCreate"]


def _maker(pod: Manifest) -> str:
    """By what the pod is named: the ReplicaSet of a Deployment has a hash behind its name."""
    name: str = pod["metadata"]["ownerReferences"][0]["name"]
    return name.removesuffix("-" + pod["metadata"]["labels"].get("pod-template-hash", ""))
