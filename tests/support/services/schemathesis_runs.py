"""Schemathesis, run as a command against a service: what no document can tell it, and several runs in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.repository import ROOT

TIMEOUT_S = 600
KNOWLEDGE = "SCHEMATHESIS_KNOWLEDGE"
"""The variable in which the hooks find what they are told, as JSON."""

CONFIGURATION = """
hooks = "tests.support.services.schemathesis_hooks"
# 503 says that no replica may answer under a bound; 500, 502 and 504 stay failures.
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
negative_data_rejection.expected-statuses = [400, 403, 404, 405, 409, 413, 414, 415, 431, 503]
positive_data_acceptance.expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 410, 429, "5xx"]

[phases.coverage]
generate-duplicate-query-parameters = true

[dictionaries.keys]
values = ["word-0", "nobody"]
[dictionaries.stores]
values = ["op0"]
[dictionaries.nodes]
values = ["n1"]

[parameters]
"path.store" = { dictionary = "stores" }
"path.key" = { dictionary = "keys" }
"path.node_id" = { dictionary = "nodes" }
"query.store" = { dictionary = "stores" }

# A cursor is of one list, and a partition of a store that is named: no document says so.
[[operations]]
include-path = ["/admin/v1/lag", "/admin/v1/history"]
checks.positive_data_acceptance.expected-statuses = ["2xx", 304, 400, 404]

# Columns, partitions and windows are of a store, and an estimate is of all of it: no document says so.
[[operations]]
include-path = [
    "/v1/stores/{store}/scan",
    "/v1/stores/{store}/count",
    "/v1/stores/{store}/export",
    "/v1/stores/{store}.{ending}",
    "/v1/stores/{store}/changes",
    "/v1/stores/{store}/windows",
    "/v1/stores/{store}/windows/{key}",
]
checks.positive_data_acceptance.expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 410, 421, 429, "5xx"]

# They have no end.
[[operations]]
include-path = ["/admin/v1/events", "/v1/stores/{store}/watch", "/v1/stores/{store}/watch/{key}"]
enabled = false
"""


LIMITS = ("--request-timeout=60", "--max-response-time=60")
"""In seconds, above the longest `wait_ms` for which a request may ask."""

_RUN = """
import json, sys
from schemathesis.cli import schemathesis

found = []
for arguments in json.loads(sys.argv[1]):
    try:
        schemathesis(arguments)
    except SystemExit as ended:
        found.append(ended.code)
sys.exit(max(found))
"""
"""To start Schemathesis takes as long as a short run of it."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the hooks are told: a position and a cursor that were issued, and with which `key` a request may see all.

    A request with another key, or with none, must not read `hidden`: the first of them is the name of a store.
    """

    position: str
    cursor: str
    key: str = ""
    hidden: tuple[str, ...] = ()


def run_schemathesis(
    folder: Path, knowledge: Knowledge, runs: Iterable[Iterable[str]], *, configuration: str = CONFIGURATION
) -> None:
    """Run it with each of these arguments, one after the other. Fails with its report when it found something."""
    path = folder / "schemathesis.toml"
    path.write_text(configuration)
    always = ("--no-color", "--seed=1", "--generation-database=none", *LIMITS)
    commands = [["--config-file", str(path), "run", *always, *arguments] for arguments in runs]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, KNOWLEDGE: json.dumps(asdict(knowledge))},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
