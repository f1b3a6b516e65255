"""What a release can become on a real API server, and the few changes that its README says need a hand.

Skipped where `make kubernetes` built none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copytree

import pytest
from tests.support.services.helm_chart import SETS, Manifest, call_for, manifests
from tests.support.services.kubernetes_api import RefusedError, Server
from tests.support.services.kubernetes_programs import controllers
from tests.support.services.kubernetes_release import apply_all, cluster, fresh_namespace, known
from tests.support.spark.queries import wait_until
from tools.chart import CHART, call_of, helm

pytestmark = pytest.mark.full

OTHERS = ("fleet", "production", "tls")
"""Sets of values for a release of the name that a trial has."""
FIXED = ("spec.volumeClaimTemplates: ", '"understudy-checkpoint" is invalid: spec: Forbidden: spec is immutable')
"""What a server says of that which stays: the disks of nodes, and how the volume of the checkpoint is shared."""
NODES = 3
"""Nodes of a trial."""
MANY = 5
"""Routers without an autoscaler."""
MANUAL = {"routers": {"replicas": MANY, "autoscaling": {"kind": "none"}}}
ROUTERS = "understudy-router"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with cluster(tmp_path_factory.mktemp("kubernetes")) as there:
        yield there


@pytest.fixture
def namespace(server: Server) -> str:
    return fresh_namespace(server)


def of_values(values: Mapping[str, object]) -> list[Manifest]:
    """The objects of values that are no set."""
    (found,) = helm([call_of("render", values)])
    objects: list[Manifest] = found["objects"]
    return objects


def later_chart(folder: Path) -> Path:
    """The chart, but of a later version."""
    copied = copytree(CHART, folder / "understudy")
    about = copied / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^(version|appVersion): .*", r'\1: "7.8.9"', about.read_text()))
    return copied


def problems(server: Server, manifest: Manifest, namespace: str) -> list[str]:
    """Why it is refused, or what it is warned of."""
    try:
        return server.apply(manifest, namespace)[1]
    except RefusedError as error:
        return [str(error)]


def test_a_release_takes_a_chart_of_another_version(server: Server, tmp_path: Path) -> None:
    chart = str(later_chart(tmp_path))
    names = ["", *SETS]
    later = helm([{**call_for("render", name), "chart": chart} for name in names])
    for name, found in zip(names, later, strict=True):
        there = fresh_namespace(server)
        apply_all(server, manifests(name), there)
        assert "7.8.9" in str(found["objects"])
        assert apply_all(server, found["objects"], there) == []


@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        ({}, {"nodes": {"storage": {"size": "20Gi"}}}, FIXED[0]),
        ({}, {"checkpoint": {"volume": {"accessMode": "ReadWriteOnce"}}}, FIXED[1]),
    ],
    ids=["size-of-nodes", "access-mode"],
)
def test_claims_stay_as_they_are(
    server: Server, namespace: str, before: dict[str, object], after: dict[str, object], refusal: str
) -> None:
    apply_all(server, of_values(before), namespace)
    with pytest.raises(RefusedError, match=re.escape(refusal)):
        apply_all(server, of_values(after), namespace)


@pytest.mark.parametrize("name", OTHERS)
def test_a_trial_becomes_whatever_else_but_for_its_disks(server: Server, namespace: str, name: str) -> None:
    apply_all(server, manifests(""), namespace)
    refused = [problem for each in known(server, manifests(name)) for problem in problems(server, each, namespace)]
    assert [said for said in refused if not any(fixed in said for fixed in FIXED)] == []


def test_pods_stay_when_their_set_is_replaced_by_one_with_larger_disks(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    def pods() -> set[str]:
        return {each["metadata"]["uid"] for each in owned(server, "StatefulSet", namespace)}

    with controllers(tmp_path, server):
        apply_all(server, manifests(""), namespace)
        wait_until(lambda: len(pods()) == NODES, what="nodes", limit_s=60, every_s=0.2)
        before = pods()
        server.delete_leaving_pods("StatefulSet", "understudy-node", namespace)
        wait_until(lambda: not pods(), what="pods without a set", limit_s=60, every_s=0.2)
        wait_until(lambda: not server.of_kind("apps/v1", "StatefulSet", namespace), what="no set", limit_s=60)
        apply_all(server, of_values({"nodes": {"storage": {"size": "20Gi"}}}), namespace)
        wait_until(lambda: pods() == before, what="the same pods in the new set", limit_s=60, every_s=0.2)


def owned(server: Server, kind: str, namespace: str) -> list[Manifest]:
    """Pods that something of this kind has made or taken over."""
    pods = server.of_kind("v1", "Pod", namespace)
    return [pod for pod in pods if kind in {each["kind"] for each in pod["metadata"].get("ownerReferences", [])}]


# Who says how many routers there are


def routers(server: Server, namespace: str) -> int:
    """How many there shall be."""
    count: int = server.find("apps/v1", "Deployment", ROUTERS, namespace)["spec"]["replicas"]
    return count


def test_an_autoscaler_that_comes_begins_with_the_number_that_kubectl_scaled_to(server: Server, namespace: str) -> None:
    apply_all(server, of_values(MANUAL), namespace)
    server.scale("Deployment", ROUTERS, MANY + 1, namespace)
    apply_all(server, manifests(""), namespace)
    assert routers(server, namespace) == MANY + 1
