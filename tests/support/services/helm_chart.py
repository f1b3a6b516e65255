"""The Helm chart as data, and Helm itself where it is installed (`make helm`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tools.chart import CHART, MANIFESTS, PYTHON, RELEASE, call_of, helm

Manifest = dict[str, Any]

SETS = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
"""Sets of values that stand for ways to use the chart."""
OLDEST, NEWEST = "1.29", "1.37"
"""The first version of Kubernetes that the chart allows, and the last whose schemas are there."""
SECOND_RELEASE = "weather"
FILLED_IN = {
    "<metadata.name>": "understudy-node-0",
    "<status.podIP>": "10.1.2.3",
    "<metadata.labels['topology.kubernetes.io/zone']>": "zone-a",
    "<understudy-redis>": "rediss://:secret@redis.example.com:6380/0",
}
"""What Kubernetes fills in, by the path of the field or the name of the Secret."""

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def values_of(name: str) -> dict[str, Any]:
    """One of these sets; "" is the chart's default."""
    return read_yaml(CHART / "ci" / f"{name}.yaml") if name else {}


def read_yaml(path: Path) -> dict[str, Any]:
    """A file of one document."""
    loaded: dict[str, Any] = YAML(typ="safe").load(path.read_text())
    return loaded


@cache
def results() -> dict[tuple[str, str], dict[str, Any]]:
    """What Helm says of every set of values, by call and name, all of it said by one process.

    Skips the test where there is no Helm.
    """
    needs_helm()
    keys = [(call, name) for name in ["", *SETS] for call in ("render", "lint")]
    found = helm([call_for(call, name) for call, name in keys])
    return dict(zip(keys, found, strict=True))


def call_for(call: str, name: str) -> dict[str, object]:
    """A call about a set of values."""
    release = SECOND_RELEASE if name == "second-application" else RELEASE
    return call_of(call, values_of(name), release=release)


def rendered(name: str) -> str:
    """The manifests of a set of values."""
    found = results()["render", name]
    assert "error" not in found, found["error"]
    return str(found["manifests"])


def manifests(name: str) -> list[Manifest]:
    """The same as objects."""
    rendered(name)
    objects: list[Manifest] = results()["render", name]["objects"]
    return objects


def lint_problems(name: str) -> list[str]:
    """What Helm's linter finds wrong."""
    found: list[str] = results()["lint", name]["problems"]
    return found


def needs_helm() -> None:
    """Skip the test where there is no Helm."""
    if not PYTHON.exists():
        pytest.skip("no Helm: make helm")


def flat_manifests() -> list[Manifest]:
    """The default, as it is kept for `kubectl apply -k`."""
    return [each for each in YAML(typ="safe").load_all(MANIFESTS.read_text()) if each is not None]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name)


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Each template of a pod, with the name of what makes the pods."""
    for each in manifests:
        if each["kind"] in ("StatefulSet", "Deployment"):
            yield each["metadata"]["name"], each["spec"]["template"]


def containers(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Every container by its name; those of equal names are of sets of nodes, and alike."""
    return {each["name"]: each for _, pod in pods(manifests) for each in pod["spec"]["containers"]}


def environment(container: Manifest) -> dict[str, str]:
    """Its variables. What Kubernetes fills in is the path of the field, or the name of the Secret, in brackets."""
    found = {}
    for each in container.get("env", []):
        source = each.get("valueFrom", {})
        reference = source.get("fieldRef", {}).get("fieldPath") or source.get("secretKeyRef", {}).get("name")
        found[each["name"]] = each.get("value", f"<{reference}>")
    return found
