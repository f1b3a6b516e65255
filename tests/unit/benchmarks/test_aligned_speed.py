"""The figures of the aligned source's benchmark that are computed, and the source that it is compared with."""

from __future__ import annotations

import pickle

import pytest
from benchmarks.aligned_at_once import AtOnce, AtOnceReader
from benchmarks.aligned_speed import latest_offset_share

from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.source import AlignedSource, AlignedStreamReader


def test_the_share_of_latest_offset_is_the_median_of_rounds() -> None:
    rounds = [{"latestOffset": part, "triggerExecution": 100.0} for part in (50.0, 10.0, 20.0)]
    assert latest_offset_share(rounds) == 0.2


def test_the_source_that_writes_nothing_ahead_differs_by_that_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_pipeline.aligned.source.remove_spool_on_sigterm", lambda _: None)
    assert AtOnce.name() != AlignedSource.name()
    options = AlignedOptions(inputs=(), topics=())
    for reader, is_ahead in ((AlignedStreamReader(options), True), (AtOnceReader(options), False)):
        copied = pickle.loads(pickle.dumps(reader))
        assert copied._get_stream()._spools_ahead is is_ahead
