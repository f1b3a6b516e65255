"""Views: a version shows what Spark stored, whatever the layers that hold it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from understudy_node.engine import view as view_module
from understudy_node.engine.base import EmptyBase
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.engine.view import (
    TIER_ENTRIES_MAX,
    Spill,
    StateView,
    Tier,
    with_newest,
    write_spill,
)

KEYS = st.binary(max_size=2).map(lambda raw: bytes(byte & 3 for byte in raw))
VALUES = st.binary(max_size=3)
CHANGES = st.dictionaries(KEYS, st.none() | VALUES, max_size=8)


class DictBase(EmptyBase):
    """A base that is a dict."""

    def __init__(self, records: dict[bytes, bytes]) -> None:
        self._records = dict(sorted(records.items()))

    def get(self, key: bytes) -> bytes | None:
        return self._records.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._records.get(key) for key in keys]

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return (
            record
            for record in self._records.items()
            if (start is None or record[0] >= start) and (end is None or record[0] < end)
        )


class Pinned(NamedTuple):
    """What a slow reader holds: its view, what it should see, and a scan it has begun."""

    view: StateView
    model: dict[bytes, bytes]
    begun: list[tuple[bytes, bytes]]
    scan: Iterator[tuple[bytes, bytes]]


def assert_same(view: StateView, model: dict[bytes, bytes]) -> None:
    every_key = [bytes([a, b]) for a in range(4) for b in range(4)] + [bytes([a]) for a in range(4)] + [b""]
    assert {key: view.get(key) for key in every_key} == {key: model.get(key) for key in every_key}
    assert view.get_many(every_key) == [model.get(key) for key in every_key]
    assert list(view.scan()) == sorted(model.items())


class ViewAgainstDicts(RuleBasedStateMachine):
    pinned = Bundle("pinned")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.cache = BlockCache()
        self.view = StateView.of(EmptyBase(), 0)
        self.models: list[dict[bytes, bytes]] = [{}]
        self.spills = 0
        self.unpublished: Spill | None = None

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(changes=CHANGES)
    def apply(self, changes: dict[bytes, bytes | None]) -> None:
        after = {**self.models[-1], **changes}
        self.models.append({key: value for key, value in after.items() if value is not None})
        self.view = self.view.with_changes(dict(changes), self.view.version + 1)

    @rule(target=pinned)
    def pin(self) -> Pinned:
        scan = self.view.scan()
        return Pinned(self.view, self.models[-1], list(islice(scan, 2)), scan)

    @rule(held=pinned)
    def read_a_pinned_version(self, held: Pinned) -> None:
        assert_same(held.view, held.model)

    @rule(held=consumes(pinned))
    def finish_a_scan_begun_earlier(self, held: Pinned) -> None:
        assert [*held.begun, *held.scan] == sorted(held.model.items())

    @rule(data=st.data())
    def swap_base(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(self.view.base_version, self.view.version))
        self.view = self.view.with_base(DictBase(self.models[version]), version)

    @precondition(lambda self: self.view.tiers and self.unpublished is None)
    @rule()
    def write_a_spill(self) -> None:
        self.spills += 1
        directory = Path(self.folder.name) / str(self.spills)
        for _ in write_spill(self.view.tiers, directory, below=self.view.spill):
            pass
        self.unpublished = Spill.open(directory, cache=self.cache)

    @precondition(lambda self: self.unpublished is not None)
    @rule()
    def publish_the_spill(self) -> None:
        assert self.unpublished is not None
        self.view = self.view.with_spill(self.unpublished)
        self.unpublished = None

    @rule(start=st.none() | KEYS, end=st.none() | KEYS)
    def scan_a_range(self, start: bytes | None, end: bytes | None) -> None:
        expected = [
            (key, value)
            for key, value in sorted(self.models[-1].items())
            if (start is None or key >= start) and (end is None or key < end)
        ]
        assert list(self.view.scan(start, end)) == expected

    @invariant()
    def the_view_is_the_model(self) -> None:
        assert self.view.version == len(self.models) - 1
        assert_same(self.view, self.models[-1])


@pytest.fixture
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few changes make several tiers."""
    monkeypatch.setattr(view_module, "TIER_ENTRIES_MAX", 12)


TestViewAgainstDicts = pytest.mark.usefixtures("small_tiers")(ViewAgainstDicts.TestCase)


@pytest.mark.usefixtures("small_tiers")
def test_a_new_base_frees_exactly_the_changes_that_it_contains() -> None:
    view = StateView.of(EmptyBase(), 0)
    for version in range(1, 6):
        view = view.with_changes({b"%d.%d" % (version, number): b"" for number in range(10)}, version)
    swapped = view.with_base(DictBase({}), 3)
    assert {tier.first_version for tier in swapped.tiers} == {4, 5}
    assert swapped.with_base(DictBase({}), 5).overlay_bytes == 0


def _tier(version: int, size: int) -> Tier:
    return Tier({b"%d.%d" % (version, at): b"" for at in range(size)}, first_version=version, last_version=version)


@given(st.lists(st.integers(1, 300), max_size=60))
def test_tiers_double_in_size_keep_their_versions_apart_and_lose_nothing(sizes: list[int]) -> None:
    tiers: tuple[Tier, ...] = ()
    for version, size in enumerate(sizes, start=1):
        tiers = with_newest(tiers, _tier(version, size))
    lengths = [len(tier.changes) for tier in tiers]
    assert sum(lengths) == sum(sizes)
    assert all(newer * 2 < older for newer, older in pairwise(lengths))
    covered = [version for tier in reversed(tiers) for version in range(tier.first_version, tier.last_version + 1)]
    assert covered == list(range(1, len(sizes) + 1))


def test_no_merge_makes_a_tier_of_more_than_the_largest_size() -> None:
    tiers: tuple[Tier, ...] = ()
    for version in range(1, 21):
        tiers = with_newest(tiers, _tier(version, TIER_ENTRIES_MAX // 4))
    lengths = [len(tier.changes) for tier in tiers]
    assert max(lengths) <= TIER_ENTRIES_MAX
    assert len(lengths) <= 10, "tiers that would fit together were left apart"
