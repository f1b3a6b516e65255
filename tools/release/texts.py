"""Checks of what the repository says of its version: one number everywhere, and a section of the changelog (pure)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

PLACES = {
    "pyproject.toml": (r'"understudy-aligned==([^"]+)"',),
    "aligned/pyproject.toml": (r'(?m)^version = "([^"]+)', r'"understudy-spark==([^"]+)"'),
    "deploy/helm/understudy/Chart.yaml": (r'(?m)^version: "?([^"\n]+)', r'(?m)^appVersion: "?([^"\n]+)'),
    "deploy/kubernetes/kustomization.yaml": (r"(?m)^ *newTag: (\S+)",),
    "deploy/kubernetes/understudy.yaml": (r'app\.kubernetes\.io/version: "?([^"\n]+)', r"image: understudy-\w+:(\S+)"),
    "deploy/Dockerfile": (r"-t understudy-\w+:(\S+)",),
    "docker-compose.yml": (r"image: understudy-\w+:(\S+)",),
    "deploy/compose/tls.yml": (r"image: understudy-\w+:(\S+)",),
    "README.md": (r"understudy_spark-([0-9][^-\s]*)-py3",),
    "docs/pipeline.md": (r"understudy_\w+-([0-9][^-\s]*)-py3",),
}
"""The patterns of the version, by the files that repeat it. Code reads it off the installed package."""


def version_of(pyproject: str) -> str:
    """Return the version of the project: this is its home."""
    return str(tomllib.loads(pyproject)["project"]["version"])


def version_problems(version: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield each place that names another version."""
    for place, patterns in PLACES.items():
        for pattern in patterns:
            for found in re.findall(pattern, texts.get(place, "")):
                if found != version:
                    yield f"{place} says {found}, pyproject.toml says {version}"


def changelog_problems(version: str, changelog: str) -> Iterator[str]:
    """Yield what the section of a version lacks: a date, entries, and what to do in an upgrade."""
    section = re.search(rf"(?ms)^## {re.escape(version)}(.*?)\n(.*?)(?=^## |\Z)", changelog)
    if section is None:
        yield f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD'"
        return
    if not re.fullmatch(r" - \d{4}-\d{2}-\d{2}", section[1]):
        yield f"the section {version} of CHANGELOG.md has no date"
    if not re.search(r"(?m)^### Upgrade notes\n+\S", section[2]):
        yield f"the section {version} of CHANGELOG.md has no '### Upgrade notes'"
    if not re.search(r"(?m)^- ", section[2]):
        yield f"the section {version} of CHANGELOG.md has no entries"
