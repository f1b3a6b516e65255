"""The forms of releases in the repository: a folder for each, with a file for each interface."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.forms.golden import GOLDEN, written
from tests.support.forms.interfaces import INTERFACES
from tests.support.repository import ROOT

RECORDED = ROOT / "tests" / "contract" / "compatibility" / "recorded"
GOLDEN_FILE = "golden.json"


def releases() -> Sequence[str]:
    """Return the releases that were recorded, the oldest first; before the first tag none is."""
    found = [each.name for each in RECORDED.glob("*") if each.is_dir()]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def files_today() -> Mapping[str, str]:
    """Return what `python -m tools.record_forms` writes for this tree, by the names of files."""
    golden = {name: written(each) for name, each in GOLDEN.items()}
    forms = {f"{name}.txt": find().text() for name, find in INTERFACES.items()}
    return {**forms, GOLDEN_FILE: json.dumps(golden, indent=1) + "\n"}


def file_of(release: str, name: str) -> Path:
    """Return the file of an interface of a release."""
    return RECORDED / release / name
