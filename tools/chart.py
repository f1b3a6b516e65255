"""Generator of files from the Helm chart: the table of values in its README, and its default as flat manifests.

    python -m tools.chart

Writes both. The manifests need Helm, which `make helm` brings: without it they are left as they are.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "understudy"
README = CHART / "README.md"
MANIFESTS = ROOT / "deploy" / "kubernetes" / "understudy.yaml"
PYTHON = ROOT / ".cache" / "helm" / "bin" / "python"
"""Python of an environment that has Helm only: it is 250 MB, and nothing else needs it."""
CALLS = Path(__file__).with_name("helm_calls.py")

RELEASE = "understudy"
"""The name that the flat manifests have, and the namespace that they are for."""

HELMS_OWN = re.compile(r"(?m)^ *(?:app\.kubernetes\.io/managed-by: Helm|helm\.sh/(?:chart|resource-policy): .*)\n")
EMPTY = re.compile(r"(?m)^ *annotations:\n(?: *#.*\n)*(?=spec:)")
BEGIN, END = "<!-- values: made by tools/chart.py -->\n", "<!-- end of values -->\n"


class HelmError(Exception):
    """The refusal of the chart or of its values by Helm, with Helm's text."""


def helm(calls: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Make calls of `helm_calls.py` in one process, and return their results."""
    done = subprocess.run(  # noqa: S603  # our own program
        [PYTHON, CALLS], input=json.dumps(calls), capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise HelmError(done.stderr)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def call_of(kind: str, values: Mapping[str, object], *, release: str = RELEASE, **more: object) -> dict[str, object]:
    """Describe a call for a release in a namespace of the same name."""
    return {"call": kind, "chart": str(CHART), "values": values, "name": release, "namespace": release, **more}


def render(values: Mapping[str, object]) -> str:
    """Render the manifests. Raises HelmError."""
    (result,) = helm([call_of("render", values)])
    if "error" in result:
        raise HelmError(result["error"])
    return str(result["manifests"])


def flat(rendered: str) -> str:
    """Return the manifests for `kubectl apply`, without what only Helm reads."""
    bare = EMPTY.sub("", HELMS_OWN.sub("", rendered))
    return "# The chart's default, rendered by `python -m tools.chart`: change the chart, not this file.\n" + bare


def leaves(
    schema: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the path and schema of every value that can be given; a value with a schema of its own (`$ref`) is one
    leaf.
    """
    for name, each in schema["properties"].items():
        if "properties" in each:
            yield from leaves(each, (*path, name))
        else:
            yield (*path, name), each


def default_of(values: Mapping[str, Any], path: Sequence[str]) -> object:
    """Return the default of a value. Raises KeyError when the file of values has no such value."""
    found: Any = values
    for name in path:
        found = found[name]
    return found


def values_table() -> str:
    """Write a row for each value: name, default, description."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = YAML(typ="safe").load((CHART / "values.yaml").read_text())
    rows = ["| value | default | is |", "|---|---|---|"]
    for path, each in leaves(schema):
        if path != ("global",):
            default = json.dumps(default_of(values, path), ensure_ascii=False)
            rows.append(f"| `{'.'.join(path)}` | `{default}` | {each['description']} |")
    return "\n".join(rows) + "\n"


def with_table(readme: str) -> str:
    """Return the README with the current table of values."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + begin + "\n" + values_table() + "\n" + end + after


def main() -> int:
    """Write the table, and the manifests where there is Helm."""
    README.write_text(with_table(README.read_text()))
    if not PYTHON.exists():
        sys.stderr.write("no Helm: the manifests are left as they are. make helm\n")
        return 1
    MANIFESTS.write_text(flat(render({})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
