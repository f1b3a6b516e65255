"""Later collections leave out the survivors of a long one, until twice as many objects are left out."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from understudy_shared.server import service
from understudy_shared.server.service import SurvivorsLeftOut


class Cyclic:
    """An object that only the collector frees."""

    freed = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Cyclic.freed += 1


@pytest.fixture(autouse=True)
def leaves_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[SurvivorsLeftOut]:
    """A callback beside those of this process, to which every full collection is a long one."""
    monkeypatch.setattr(service, "LONG_S", 0.0)
    monkeypatch.setattr(Cyclic, "freed", 0)
    gc.disable()  # only collections of the test
    gc.unfreeze()
    callback = SurvivorsLeftOut()
    gc.callbacks.append(callback)
    yield callback
    gc.callbacks.remove(callback)
    gc.unfreeze()
    gc.enable()
    gc.collect()


def test_what_survives_a_long_full_collection_is_not_looked_at_again() -> None:
    kept = [Cyclic() for _ in range(100)]
    gc.collect(1)
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() > 100
    assert not any(isinstance(each, Cyclic) for each in gc.get_objects())
    kept.clear()
    gc.collect()
    assert Cyclic.freed == 0


def test_all_is_looked_at_again_when_twice_as_much_is_left_out() -> None:
    kept = [Cyclic() for _ in range(100)]
    gc.collect()
    kept.clear()
    more = [[] for _ in range(2 * gc.get_freeze_count())]  # type: ignore[var-annotated]
    gc.collect()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert Cyclic.freed == 100
    assert len(more) < gc.get_freeze_count()
