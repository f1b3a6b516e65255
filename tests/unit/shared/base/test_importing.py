"""Collections are off while modules are imported, and as before afterwards, also when an import fails."""

from __future__ import annotations

import gc
from importlib import import_module

import pytest

from understudy_shared.base.importing import without_collections


def test_collections_are_off_in_the_block_and_as_before_after_it() -> None:
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), without_collections():
        import_module("understudy_shared.absent")
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
