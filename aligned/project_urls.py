"""The hook of the build that writes the project's links into the metadata of wheel and source archive.

The release sets REPOSITORY_URL, such as https://HOST/OWNER/understudy: the sources name no host by themselves, so
a fork's wheel never points at the issues of another. Without it the metadata has no links.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "REPOSITORY_URL"


class ProjectUrls(MetadataHookInterface):  # type: ignore[misc]  # hatchling is only in the build's environment
    """The hook that hatchling finds in this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the links, where the variable names a repository."""
        metadata["urls"] = project_urls(os.environ.get(VARIABLE, ""))


def project_urls(repository: str) -> dict[str, str]:
    """Return the links of a repository, under the labels that package indexes know (pure)."""
    url = repository.strip().rstrip("/")
    if not url:
        return {}
    if not url.startswith("https://"):
        message = f"{VARIABLE} is {url!r}: write the repository's address, such as https://HOST/OWNER/understudy"
        raise ValueError(message)
    return {
        "Homepage": url,
        "Documentation": f"{url}/tree/main/docs",
        "Source": url,
        "Issues": f"{url}/issues",
        "Changelog": f"{url}/blob/main/CHANGELOG.md",
        "Security": f"{url}/security/policy",
    }
