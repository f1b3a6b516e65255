"""The Helm chart as data, and Helm itself where it is installed (`make helm`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tools.chart import CHART, MANIFESTS, PYTHON, HelmError, helm, render

Manifest = dict[str, Any]

SETS = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
"""Sets of values that stand for ways to use the chart."""
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = "\n".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))


def values_of(name: str) -> dict[str, Any]:
    """One of these sets; "" is the chart's default."""
    return read_yaml(CHART / "ci" / f"{name}.yaml") if name else {}


def read_yaml(path: Path) -> dict[str, Any]:
    """A file of one document."""
    loaded: dict[str, Any] = YAML(typ="safe").load(path.read_text())
    return loaded


def documents(text: str) -> list[Manifest]:
    """Every object of manifests."""
    return [each for each in YAML(typ="safe").load_all(text) if each is not None]


@cache
def rendered(name: str) -> str:
    """The manifests of a set of values; skips the test where there is no Helm."""
    needs_helm()
    return render(values_of(name))


def refused(values: Mapping[str, object]) -> str:
    """What Helm says of values that it has to refuse."""
    needs_helm()
    with pytest.raises(HelmError) as error:
        render(values)
    return str(error.value)


def needs_helm() -> None:
    """Skip the test where there is no Helm."""
    if not PYTHON.exists():
        pytest.skip("no Helm: make helm")


def call(**arguments: object) -> dict[str, Any]:
    """One call of Helm's library, or of the schemas beside it."""
    needs_helm()
    (result,) = helm([arguments])
    return result


def flat_manifests() -> list[Manifest]:
    """The default, as it is kept for `kubectl apply -k`."""
    return documents(MANIFESTS.read_text())


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


def privileges(pod: Manifest) -> list[str]:
    """What a pod may do beyond what is needed; empty for all of ours."""
    spec = pod["spec"]
    security = spec["securityContext"]
    allowed = {
        "a token of the API": spec["automountServiceAccountToken"] is not False,
        "variables of services": spec["enableServiceLinks"] is not False,
        "root": security["runAsNonRoot"] is not True or security["runAsUser"] == 0,
        "any call of the kernel": security["seccompProfile"] != {"type": "RuntimeDefault"},
        "what is the machine's": bool({"hostNetwork", "hostPID", "hostIPC"} & set(spec)),
        "paths of the machine": any("hostPath" in volume for volume in spec.get("volumes", [])),
    }
    for container in spec["containers"]:
        own = container["securityContext"]
        allowed["more privileges"] = own["allowPrivilegeEscalation"] is not False
        allowed["to write its root"] = own["readOnlyRootFilesystem"] is not True
        allowed["capabilities"] = own["capabilities"] != {"drop": ["ALL"]}
        allowed["memory without an end"] = "memory" not in container["resources"].get("limits", {})
    return [what for what, is_allowed in allowed.items() if is_allowed]
