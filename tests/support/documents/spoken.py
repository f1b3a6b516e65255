"""The texts that a package says: what documents quote of it has to be among them."""

from __future__ import annotations

import ast
from functools import cache

from tests.support.repository import ROOT


@cache
def spoken(package: str) -> str:
    """Every text in a package's code, one after another; what is put into an f-string is a blank."""
    texts = [
        node.value
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join(texts)
