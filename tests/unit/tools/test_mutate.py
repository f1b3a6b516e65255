"""The mutants of a pure core: each differs from the others and from the original in one place."""

from __future__ import annotations

import ast

from tools.mutate import CORES, mutants_of


def test_each_mutant_of_a_core_changes_one_place_and_can_be_compiled() -> None:
    source = "def is_late(at: int, now: int) -> bool:\n    return at + 1 < now and not now == 0\n"
    found = dict(mutants_of(source))
    assert len(found) == len(set(found.values())) == 7
    for mutant in found.values():
        ast.parse(mutant)
        assert ast.unparse(ast.parse(source)) != mutant


def test_each_core_is_a_module_with_tests() -> None:
    for core in CORES.values():
        assert core.path.exists()
        assert core.test_files()
