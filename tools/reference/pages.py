"""The generated pages, and what renders each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference.command_line import command_line_page
from tools.reference.http_calls import admin_page, http_page
from tools.reference.limits import limits_page
from tools.reference.problems import problems_page
from tools.reference.python_client import python_client_page
from tools.reference.support_matrix import support_matrix_page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "admin.md": admin_page,
    "command-line.md": command_line_page,
    "http.md": http_page,
    "limits.md": limits_page,
    "problems.md": problems_page,
    "python-client.md": python_client_page,
    "support-matrix.md": support_matrix_page,
}
"""The text of each file in `docs/reference/` that is not written by hand."""
