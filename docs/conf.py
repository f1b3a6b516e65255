"""The site that `make docs` builds of the Markdown files: Sphinx, MyST, furo. It needs no network.

The source folder is the repository: links between documents are the same on the site and in the repository.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

project = "Understudy"
author = "the Understudy authors"
project_copyright = "the Understudy authors, Apache-2.0"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
installed_from = f"dist/understudy_spark-{release}-py3-none-any.whl"
"""The package that pages tell a reader to install. Once an index has it, this is "understudy-spark"."""
aligned_in = "--find-links dist"
"""The option beside extras that bring `understudy-aligned`: where it is. Once an index has it, this is ""."""

extensions = ["myst_parser"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["docs/**", "deploy/README.md", "deploy/helm/understudy/README.md", "*.md"]
exclude_patterns = ["README.md", ".venv", ".cache", "dist", "**/node_modules"]

myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"Understudy {release}"
templates_path = ["_templates"]
html_additional_pages = {"index": "start.html"}
html_use_index = False
html_static_path = ["_static"]
html_css_files = ["understudy.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_permalinks = True
html_theme_options = {"sidebar_hide_name": False}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


ACCESSIBLE = {
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    'role="heading">': 'role="heading" aria-level="2">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<th class="head"><p></p></th>': "<td></td>",
}
"""Attributes that the theme lacks, for screen readers and for scrolling by the keyboard."""


FOR_MAKERS = "docs/project"
"""The page that lists what users need none of. No navigation shows it, and no search finds what it lists."""


def setup(app: Any) -> None:
    """Complete the pages when they are written."""
    app.connect("env-updated", _hide_what_is_for_makers)
    app.connect("build-finished", _complete)


def _hide_what_is_for_makers(_: Any, environment: Any) -> None:
    environment.metadata[FOR_MAKERS]["orphan"] = ""
    for page in (FOR_MAKERS, *environment.toctree_includes[FOR_MAKERS]):
        environment.metadata[page]["no-search"] = ""


def _complete(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        for path in Path(app.outdir).rglob("*.html"):
            before = text = path.read_text()
            for original, replacement in ACCESSIBLE.items():
                text = text.replace(original, replacement)
            if text != before:
                path.write_text(text)
