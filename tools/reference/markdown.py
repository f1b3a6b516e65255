"""Pieces of Markdown that read the same in the repository and on the site (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

GENERATED = "<!-- `python -m tools.reference` writes this page from {source}. -->"

_CODE = re.compile(r"(`[^`]*`)")


def plain(text: str) -> str:
    """Return a text in one line, with nothing that Markdown takes for HTML outside of code."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*") for part in parts)


def cell(text: str) -> str:
    """Return a text that can stand in a cell of a table, in code too."""
    return " ".join(text.split()).replace("|", r"\|")


def code(text: str) -> str:
    """Return a text as code, which keeps every character."""
    return f"`{text}`"


def fence(text: str, language: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text.strip(chr(10))}\n```\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or nothing when there is no row."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) + "\n"


def entries(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list of names, each with what it is, if that is said."""
    return "".join(f"- {name}{text and ': '}{text}\n" for name, text in rows)


def page(*parts: str) -> str:
    """Join parts by blank lines; empty ones are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
