"""Changes one operator or constant of a pure core at a time, and says which changes no test of that core notices.

    python -m tools.mutate [--core NAME]... [--mutants 20] [--seed 1] [--list]

A mutant that survives shows a claim without a test, or a line without a use. Some mutants do the same as the
original, so a few survivors are normal: read them. Each mutant is a copy of its module in a folder that Python searches
first; the working tree stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
LIMIT_S: Final = 300
"""Time for the tests of one mutant. One that hangs is noticed, too."""

UNIT = "tests/unit"


@dataclass(frozen=True, slots=True)
class Core:
    """A module whose decisions are pure, and the tests that should notice each change of it."""

    module: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return next(path for top in ("shared", "node", "router", "client", "aligned")
                    if (path := ROOT / top / f"{self.module.replace('.', '/')}.py").exists())  # fmt: skip

    def test_files(self) -> list[Path]:
        """Return the files of its tests."""
        return [path for pattern in self.tests for path in sorted(ROOT.glob(pattern))]


CORES: Final = {
    "assignor": Core("understudy_node.cluster.assignor", (f"{UNIT}/node/cluster/test_assignor*.py",)),
    "balance": Core("understudy_node.cluster.balance", (f"{UNIT}/node/cluster/test_assignor*.py",)),
    "batch plan": Core("understudy_aligned.batch_plan", (f"{UNIT}/pipeline/aligned",)),
    "bounds": Core("understudy_shared.reads.bounds", (f"{UNIT}/shared/reads/test_bounds.py", f"{UNIT}/router/routing")),
    "choose": Core("understudy_router.routing.choose", (f"{UNIT}/router/routing",)),
    "end": Core("understudy_node.follow.end", (f"{UNIT}/node/follow/test_[ek]*.py",)),
    "fallback": Core("understudy_router.forwarding.fallback", (f"{UNIT}/router/forwarding",)),
    "feed": Core("understudy_shared.questions.watch.hop", (f"{UNIT}/router/questions/watch",)),
    "health": Core("understudy_router.cluster.health", (f"{UNIT}/router/cluster",)),
    "leader": Core("understudy_node.cluster.leader", (f"{UNIT}/node/cluster/test_lea*.py",)),
    "safe to stop": Core("understudy_router.admin.safe_to_stop", (f"{UNIT}/router/admin/test_safe_to_stop.py",)),
    "scan page": Core("understudy_shared.questions.scan.page", (f"{UNIT}/shared/questions/scan",)),
    "spills": Core("understudy_node.engine.view", (f"{UNIT}/node/engine", "tests/contract/node/engine")),
    "tokens": Core("understudy_shared.reads.tokens", (f"{UNIT}/shared/reads/test_tokens.py",)),
    "view": Core("understudy_shared.cluster.view", (f"{UNIT}/shared/cluster", f"{UNIT}/router/cluster")),
    "where": Core("understudy_shared.questions.scan.where", (f"{UNIT}/shared/questions/scan/test_where.py",)),
}

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}


def mutants_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield what was changed, and the changed source, for each place where something can be changed."""
    for index in range(sum(1 for _ in _places(ast.parse(source)))):
        tree = ast.parse(source)
        place = list(_places(tree))[index]
        before = ast.unparse(place)
        _change(place)
        yield f"line {place.lineno}: {before}  ->  {ast.unparse(place)}", ast.unparse(tree)


def _places(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions of functions that `_change` knows."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.expr) and _is_place(node):
                        yield node


def _is_place(node: ast.expr) -> bool:
    match node:
        case ast.Compare(ops=[only]):
            return type(only) in _COMPARISONS
        case ast.BinOp(op=operator):
            return type(operator) in _OPERATORS
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Constant(value=value):
            return isinstance(value, bool) or (isinstance(value, int) and value in {0, 1})
    return False


def _change(node: ast.expr) -> None:
    match node:
        case ast.Compare(ops=[only]):
            node.ops = [_COMPARISONS[type(only)]()]
        case ast.BinOp(op=operator):
            node.op = _OPERATORS[type(operator)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() as value):
            node.value = 1 - value


def survives(core: Core, source: str) -> bool:
    """Whether the tests of a core pass with its module replaced."""
    with tempfile.TemporaryDirectory(prefix="understudy-mutant-") as folder:
        plugin = Path(folder) / "mutant_plugin.py"
        plugin.write_text(_PLUGIN.format(module=core.module, path=str(core.path), source=source))
        tests = [str(path) for path in core.test_files()]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "mutant_plugin"]
        profile = ["--hypothesis-profile=repeatable", "-m", "not full", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": folder}
        try:
            done = subprocess.run(  # noqa: S603  # this Python
                [*command, *profile, *tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


_PLUGIN = """
import importlib.abc, importlib.util, sys

SOURCE = {source!r}

class Mutant(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            return importlib.util.spec_from_file_location(name, {path!r}, loader=self)

    def get_filename(self, name):
        return {path!r}

    def get_data(self, path):
        return SOURCE.encode()

    def path_stats(self, path):
        raise OSError

sys.meta_path.insert(0, Mutant())
"""


def main() -> int:
    """Do what the command line says. Return 1 when the tests fail without any mutant, else 0."""
    options = _options()
    found: list[str] = []
    for name in options.core or CORES:
        core = CORES[name]
        source = core.path.read_text()
        mutants = list(mutants_of(source))
        chosen = random.Random(options.seed).sample(  # noqa: S311  # not for secrets
            mutants, min(options.mutants, len(mutants))
        )
        if options.list:
            sys.stdout.write("".join(f"{name}: {what}\n" for what, _ in chosen))
            continue
        if not survives(core, source):
            sys.stderr.write(f"error: the tests of {name} fail without a mutant\n")
            return 1
        for number, (what, mutant) in enumerate(chosen, 1):
            sys.stderr.write(f"{name}: {number} of {len(chosen)}\r")
            if survives(core, mutant):
                found.append(f"{name}: {what}")
        left = sum(each.startswith(f"{name}: ") for each in found)
        sys.stdout.write(f"{name}: {len(chosen) - left} of {len(chosen)} mutants are noticed\n")
    sys.stdout.write("".join(f"survives: {each}\n" for each in found))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", action="append", choices=sorted(CORES), help="a core; all without it")
    parser.add_argument("--mutants", type=int, default=20, help="most mutants of a core")
    parser.add_argument("--seed", type=int, default=1, help="chooses the mutants")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
