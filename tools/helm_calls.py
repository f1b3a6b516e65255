"""Calls of Helm's library, as JSON on standard input and output; run by the Python of `.cache/helm`, which has it.

A call is {"call": "render", "chart", "values", "name", "namespace"}, {"call": "lint", "chart", "values"} or
{"call": "validate", "manifests", "version"}: the last by the schemas of a version of Kubernetes. A result has
`manifests`, `problems` or `error`.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def render(call: dict[str, Any]) -> dict[str, Any]:
    """The manifests."""
    from helm_python import Chart  # type: ignore[import-not-found]  # noqa: PLC0415

    chart = Chart.load(call["chart"])
    return {"manifests": chart.render(call["values"], name=call["name"], namespace=call["namespace"])}


def main() -> int:
    """Make every call."""
    json.dump([render(call) for call in json.load(sys.stdin)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
