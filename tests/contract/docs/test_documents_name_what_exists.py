"""Documents name paths, modules, tests, links and anchors: each of them exists."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain, count, product
from pathlib import Path, PurePosixPath

from tests.support.documents.blocks import files_written
from tests.support.repository import ROOT

SOURCE_ROOTS = ("aligned", "client", "node", "pipeline", "router", "shared")
TOP_FOLDERS = (*SOURCE_ROOTS, "benchmarks", "deploy", "docs", "tests", "tools")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("deploy/*.md"), *ROOT.glob("docs/**/*.md")])

BACKTICKED = re.compile(r"`([^`\n]+)`")
NAMES_A_FILE = re.compile(r"[\w.*/{},-]*\.(?:py|toml|svg)")
NAMES_A_FOLDER = re.compile(r"[\w{},]+(?:/[\w{},]+)*/")
IN_A_FIGURE = re.compile(r"(?<![\w/.<-])[\w/]+\.py\b")
MADE_BY_A_SHELL = re.compile(r" > (\S+\.py)\b")
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
ANCHOR = re.compile(r"\]\(([^)\s#:]*)#([^)\s]+)\)")
TEST = re.compile(r"`(test_\w+)`")

CURRENT = [path for path in DOCUMENTS if "decisions" not in path.parts]
"""Documents that say how things are. A decision says how they were: a rename must not edit it."""


@cache
def every_path() -> frozenset[PurePosixPath]:
    """Files of the project, and the folders that they are in; none that a tool made."""
    files = [path for top in TOP_FOLDERS for path in (ROOT / top).rglob("*") if "__pycache__" not in path.parts]
    files += [path for path in ROOT.iterdir() if path.is_file() or path.name in TOP_FOLDERS]
    return frozenset(PurePosixPath(path.relative_to(ROOT)) for path in files)


@cache
def every_suffix() -> frozenset[str]:
    """Every way to name a path by its last parts."""
    return frozenset("/".join(path.parts[start:]) for path in every_path() for start in range(len(path.parts)))


def spelled_out(name: str) -> list[str]:
    """`a/{b,c}.py` names two files."""
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    choices = [part if place % 2 else [",".join(part)] for place, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


def exists(name: str) -> bool:
    """Whether a file or folder can be meant: by its path from the root, or by its last parts."""
    if "*" in name:
        return any(path.match(name) for path in every_path())
    return name.strip("/") in every_suffix()


def names_in(text: str) -> list[str]:
    """Files and folders that a document names in backticks, and modules in its figures."""
    named = [
        name for name in BACKTICKED.findall(text) if NAMES_A_FILE.fullmatch(name) or NAMES_A_FOLDER.fullmatch(name)
    ]
    figures = "\n".join(text.split("```")[1::2])
    return [each for name in [*named, *IN_A_FIGURE.findall(figures)] for each in spelled_out(name)]


def test_every_file_folder_and_module_that_a_document_names_exists() -> None:
    for document in CURRENT:
        made = files_written(document) | set(MADE_BY_A_SHELL.findall(document.read_text()))
        named = [name for name in names_in(document.read_text()) if name not in made]
        assert [name for name in named if not exists(name)] == [], document


def test_every_link_of_a_document_leads_to_a_file() -> None:
    links = [(document, link) for document in DOCUMENTS for link in LINK.findall(document.read_text())]
    assert [(document, link) for document, link in links if not (document.parent / link).exists()] == []


@cache
def anchors(document: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub and the site make them."""
    text = re.sub(r"(?ms)^```.*?^```", "", document.read_text())
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        names = chain([anchor], (f"{anchor}-{number}" for number in count(1)))
        found.add(next(name for name in names if name not in found))
    return frozenset(found)


def test_every_anchor_that_a_document_links_to_is_a_heading() -> None:
    linked = [
        (document, document.parent / name if name else document, anchor)
        for document in DOCUMENTS
        for name, anchor in ANCHOR.findall(document.read_text())
    ]
    assert [each for each in linked if each[1].suffix == ".md" and each[2] not in anchors(each[1])] == []


def test_every_test_that_a_document_names_exists() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    there = set(re.findall(r"def (test_\w+)\(", code))
    named = {name for document in CURRENT for name in TEST.findall(document.read_text())}
    assert named
    assert named - there == set()
