"""What services read is data: no code of theirs unpickles, evaluates or hands text to a shell.

The pipeline is left out: Spark itself pickles what goes between its processes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.repository import ROOT

PACKAGES = ("node", "router", "shared", "client")
UNPACKERS = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
RUNNERS = {"eval", "exec"}
DANGEROUS = UNPACKERS | RUNNERS | {"shell"}
ALLOWED = {
    "shared/understudy_shared/spark: exec",
    "node/understudy_node/questions/export/bulk: marshal",
    "node/understudy_node/questions/export/bulk: pickle",
}
"""Compiled readers, of whose schema nothing becomes code (test_key_codec.py). And what a node and the
process that it starts for exports tell each other, by a pipe that no other process has.
"""


def found_in(path: Path) -> Iterator[str]:
    text = path.read_text()
    if not any(name in text for name in DANGEROUS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        if isinstance(node, ast.keyword) and node.arg == "shell":
            yield "shell"


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    used = {
        f"{path.parent.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in found_in(path)
        if name in DANGEROUS
    }
    assert used == ALLOWED
