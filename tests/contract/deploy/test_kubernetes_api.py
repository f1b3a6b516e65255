"""A real API server takes what the chart makes: skipped where `make kubernetes` built none.

Schemas know the shape of an object. The server also has the rules that are code: which names may be there twice, what a
template of pods needs in a namespace that is `restricted`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.support.services.helm_chart import SETS, flat_manifests, manifests, of_kind
from tests.support.services.kubernetes_api import RefusedError, Server
from tests.support.services.kubernetes_programs import controllers
from tests.support.services.kubernetes_release import (
    MAKERS,
    apply_all,
    cluster,
    fresh_namespace,
    pods_there,
    pods_wanted,
    refusals,
    written,
)
from tests.support.spark.queries import wait_until
from tools.chart import MANIFESTS

pytestmark = pytest.mark.full

MADE_BY_CONTROLLERS = ("", "fleet", "production")
"""The others make pods of the same kinds."""

each_set = pytest.mark.parametrize("name", ["", *SETS], ids=["default", *SETS])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with cluster(tmp_path_factory.mktemp("kubernetes")) as there:
        yield there


@pytest.fixture
def namespace(server: Server) -> str:
    return fresh_namespace(server)


def differences(given: Any, kept: Any, path: str = "") -> list[str]:
    """Where the server keeps something else than it was given. What it adds is no difference."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [each for key in given for each in differences(given[key], kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [each for number, pair in pairs for each in differences(*pair, f"{path}[{number}]")]
    return [] if given == kept else [f"{path}: {given!r} is kept as {kept!r}"]


@each_set
def test_every_object_is_taken_as_it_is_written_without_a_warning(server: Server, namespace: str, name: str) -> None:
    for text, each in written(server, name):
        assert server.try_to_create(text, each, namespace) == [], each["kind"]
        kept, warnings = server.apply(each, namespace)
        assert warnings == [], each["kind"]
        assert differences(each, kept) == []


def test_the_server_does_refuse_what_is_unknown_and_what_is_there_twice(server: Server, namespace: str) -> None:
    text, service = next(pair for pair in written(server, "") if pair[1]["kind"] == "Service")
    with pytest.raises(RefusedError, match="unknown field"):
        server.try_to_create(text + "\n  sessionAfinity: None\n", service, namespace)
    with pytest.raises(RefusedError, match="already set"):
        server.try_to_create(text + "\nkind: Service\n", service, namespace)
    changed = deepcopy(service)
    changed["spec"]["ports"] *= 2
    with pytest.raises(RefusedError, match="duplicate"):
        server.apply(changed, namespace)


def test_kubectl_applies_the_flat_manifests(server: Server, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl")
    reach = [kubectl, f"--kubeconfig={server.kubeconfig(tmp_path)}"]
    apply = [*reach, "apply", "--validate=strict", "-k", str(MANIFESTS.parent)]
    done = subprocess.run(apply, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(flat_manifests()) + len(["the namespace"])


# What controllers make of it


@pytest.fixture(scope="module")
def making(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with controllers(tmp_path_factory.mktemp("controllers"), server):
        yield


@pytest.mark.usefixtures("making")
@pytest.mark.parametrize("name", MADE_BY_CONTROLLERS, ids=["default", *MADE_BY_CONTROLLERS[1:]])
def test_every_pod_is_made_where_only_restricted_ones_may_be(server: Server, namespace: str, name: str) -> None:
    objects = manifests(name)
    apply_all(server, objects, namespace)

    def has_all() -> bool:
        assert not (said := refusals(server, namespace)), said
        return pods_there(server, namespace) == pods_wanted(objects)

    wait_until(has_all, what=f"pods: {pods_wanted(objects)}", limit_s=60, every_s=0.2)
    sets = {each["metadata"]["name"]: each["spec"]["replicas"] for each in of_kind(objects, "StatefulSet")}
    disks = {each["metadata"]["name"] for each in server.of_kind("v1", "PersistentVolumeClaim", namespace)}
    assert disks >= {f"data-{each}-{number}" for each, replicas in sets.items() for number in range(replicas)}


@pytest.mark.usefixtures("making")
def test_a_pod_that_may_do_more_is_warned_of_and_never_made(server: Server, namespace: str) -> None:
    objects = deepcopy([each for each in manifests("") if each["kind"] in (*MAKERS, "ServiceAccount")])
    nodes = of_kind(objects, "StatefulSet")[0]
    nodes["spec"]["template"]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert "allowPrivilegeEscalation" in str(apply_all(server, objects, namespace))
    wait_until(lambda: bool(refusals(server, namespace)), what="a refusal", limit_s=60, every_s=0.2)
    assert all("violates PodSecurity" in each for each in refusals(server, namespace))
    assert pods_there(server, namespace)[nodes["metadata"]["name"]] == 0
