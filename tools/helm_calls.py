"""Calls of Helm's library, as JSON on standard input and output; run by the Python of `.cache/helm`, which has it.

A call is {"call", "chart", "values", "name", "namespace"}, where "call" is "render", "lint", "validate" or "package".
"validate" has a "version" of Kubernetes, too, whose schemas the objects have to keep, and "package" a folder `into`. A
result has `manifests` and `objects`, or `problems`, or `archive`, or `error`.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

OTHERS = ("cert-manager.io/", "gateway.networking.k8s.io/", "keda.sh/", "monitoring.coreos.com/", "spark.apache.org/")
"""API groups that are not Kubernetes' own; tests of the chart look at their objects."""
FIRST_WARNING = 2
"""The lowest severity that is reported: 1 is information, 2 a warning, 3 an error."""


def render(call: dict[str, Any]) -> dict[str, Any]:
    """Render the manifests as `helm template` prints them; values that the schema refuses are an error."""
    import helm_python as helm  # type: ignore[import-not-found]  # noqa: PLC0415
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415

    with helm.Chart.load(call["chart"]) as chart:
        try:
            chart.validate_schema(call["values"])
            found = chart.render(call["values"], name=call["name"], namespace=call["namespace"])
        except helm.HelmError as error:
            return {"error": str(error)}
    texts = {path: text.strip().removeprefix("---\n") for path, text in found.items() if path.endswith(".yaml")}
    parts = [f"---\n# Source: {path}\n{text}\n" for path, text in sorted(texts.items()) if text]
    objects = [each for part in parts for each in yaml.load_all(part, Loader=yaml.CSafeLoader) if each]
    return {"manifests": "".join(parts), "objects": objects}


def lint(call: dict[str, Any]) -> dict[str, Any]:
    """Return what `helm lint --strict` reports above the level of information."""
    import helm_python as helm  # noqa: PLC0415

    report = helm.lint(call["chart"], call["values"], strict=True)
    said = [f"{each['path']}: {each['error']}" for each in report["messages"] if each["severity"] >= FIRST_WARNING]
    return {"problems": [*said, *report["errors"]]}


def validate(call: dict[str, Any]) -> dict[str, Any]:
    """List the objects that break the strict schemas of a version of Kubernetes, and why."""
    own = [each for each in render(call)["objects"] if not each["apiVersion"].startswith(OTHERS)]
    return {"problems": [said for each in own if (said := problem(json.dumps(each), call["version"]))]}


@cache
def problem(text: str, version: str) -> str | None:
    """Return what is wrong with an object. Results are cached: most objects occur in many sets of values."""
    import kubernetes_validate as kubernetes  # type: ignore[import-not-found]  # noqa: PLC0415

    each = json.loads(text)
    name = f"{each['kind']} {each['metadata']['name']}"
    try:
        kubernetes.validate(each, version, strict=True)
    except kubernetes.ValidationError as error:
        return f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes.SchemaNotFoundError as error:
        return f"{name}: {error.message}"
    return None


def package(call: dict[str, Any]) -> dict[str, Any]:
    """Package the chart into the folder `into`, as `helm package` does."""
    import helm_python as helm  # noqa: PLC0415

    try:
        return {"archive": helm.package(call["chart"], destination=call["into"])}
    except helm.HelmError as error:
        return {"error": str(error)}


CALLS = {"render": render, "lint": lint, "validate": validate, "package": package}


def main() -> int:
    """Make every call."""
    json.dump([CALLS[call["call"]](call) for call in json.load(sys.stdin)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
