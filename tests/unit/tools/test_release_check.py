"""The release check: one version everywhere, a dated changelog, free licences, wheels for each machine, and a table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.repository import ROOT
from tools.release.architectures import wheel_problems
from tools.release.licences import vendored_problems
from tools.release.texts import PLACES, changelog_problems, version_of, version_problems

VERSION = version_of((ROOT / "pyproject.toml").read_text())
TEXTS = {place: (ROOT / place).read_text() for place in PLACES}


@pytest.mark.parametrize("place", PLACES)
def test_each_place_that_says_another_version_is_named(place: str) -> None:
    changed = {**TEXTS, place: TEXTS[place].replace(VERSION, "9.9.9")}
    assert set(version_problems(VERSION, changed)) == {f"{place} says 9.9.9, pyproject.toml says {VERSION}"}


@pytest.mark.parametrize(
    ("changelog", "lacking"),
    [
        ("## Unreleased\n\n- a\n", ["has no section"]),
        ("## 1.2.0\n\n### Upgrade notes\n\n- a\n", ["has no date"]),
        ("## 1.2.0 - 2026-12-01\n\n### Added\n\n- a\n", ["Upgrade notes"]),
        ("## 1.2.0 - 2026-12-01\n\n### Upgrade notes\n\nNothing to do.\n\n## 1.1.0\n- a\n", ["has no entries"]),
        ("## Unreleased\n\n## 1.2.0 - 2026-12-01\n\n### Upgrade notes\n\n- none\n", []),
    ],
)
def test_what_a_section_of_the_changelog_lacks_is_said(changelog: str, lacking: Sequence[str]) -> None:
    found = list(changelog_problems("1.2.0", changelog))
    assert len(found) == len(lacking)
    assert all(part in line for part, line in zip(lacking, found, strict=True))


def test_the_files_of_others_are_those_that_are_named() -> None:
    assert list(vendored_problems(ROOT)) == []


def test_a_package_without_a_wheel_for_a_machine_is_named() -> None:
    lock = "".join(
        f'[[package]]\nname = "{name}"\nversion = "1"\nwheels = [{", ".join(wheels)}]\n'
        for name, wheels in {
            "pure": ['{ url = "x/pure-1-py3-none-any.whl" }'],
            "stable": [
                f'{{ url = "x/stable-1-cp39-abi3-manylinux_2_17_{each}.whl" }}' for each in ("x86_64", "aarch64")
            ],
            "one": ['{ url = "x/one-1-cp311-cp311-manylinux_2_17_x86_64.whl" }'],
            "later": ['{ url = "x/later-1-cp313-cp313-manylinux_2_17_aarch64.whl" }'],
            "source": [],
        }.items()
    )
    assert list(wheel_problems(lock, ["pure", "stable", "one", "later", "source"])) == [
        "later has no wheel for x86_64", "later has no wheel for aarch64", "one has no wheel for aarch64",
    ]  # fmt: skip
