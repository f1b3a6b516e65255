"""docs/compatibility.md holds: what a recorded release had is there today, and reads and writes what it wrote."""

from __future__ import annotations

import json
from functools import cache

import pytest
from tests.support.forms.form import Form, broken, form_of
from tests.support.forms.golden import GOLDEN, read_again
from tests.support.forms.interfaces import INTERFACES
from tests.support.forms.recorded import GOLDEN_FILE, file_of, releases

WHAT_TO_DO = """
Put back what is gone, or keep the old beside the new: deprecate it as docs/compatibility.md says, with a line under
"Deprecated" in CHANGELOG.md. What was deprecated for long enough is taken out of the recorded file in the same commit,
with a line under "Removed". A version that was not released yet is recorded again: python -m tools.record_forms
"""


@cache
def today(interface: str) -> Form:
    return INTERFACES[interface]()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("release", releases())
def test_what_a_release_promised_is_kept(release: str, interface: str) -> None:
    recorded = form_of(file_of(release, f"{interface}.txt").read_text())
    found = broken(recorded, today(interface))
    lines = "\n".join(f"  {line}" for line in found)
    assert not found, f"\nthe interface {interface!r} breaks those who know release {release}:\n{lines}\n{WHAT_TO_DO}"


@pytest.mark.parametrize("release", releases())
def test_what_a_release_wrote_is_read_as_it_was_meant(release: str) -> None:
    recorded = json.loads(file_of(release, GOLDEN_FILE).read_text())
    for name, text in recorded.items():
        assert read_again(GOLDEN[name], text) == GOLDEN[name].value, (
            f"\n{name!r} as release {release} wrote it is not read as it was meant.\nRead the old form beside the new "
            f"one for as long as docs/compatibility.md says. The value itself never changes: add another.\n{text}"
        )
