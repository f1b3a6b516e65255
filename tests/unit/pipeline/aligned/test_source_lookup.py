"""How Spark finds the source, and what it finds where the source's packages are missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

import pyspark_understudy
import understudy_pipeline
from understudy_pipeline.aligned.source import AlignedSource
from understudy_shared.errors import SettingsError


@pytest.fixture
def looked_up_again() -> Iterator[None]:
    yield
    importlib.reload(pyspark_understudy)


def test_spark_finds_the_source_by_the_name_of_a_module() -> None:
    assert pyspark_understudy.__name__.startswith("pyspark_")
    assert pyspark_understudy.DefaultSource is AlignedSource is understudy_pipeline.AlignedSource
    assert AlignedSource.name() == "understudy"


@pytest.mark.usefixtures("looked_up_again")
def test_without_its_packages_it_is_found_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "understudy_pipeline.aligned.source", None)
    found = importlib.reload(pyspark_understudy).DefaultSource
    assert found.name() == "understudy"
    with pytest.raises(SettingsError, match="pip install"):
        found({})


def test_the_package_names_what_it_exports_and_nothing_else() -> None:
    for name in understudy_pipeline.__all__:
        assert getattr(understudy_pipeline, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Announcer'"):
        understudy_pipeline.Announcer  # noqa: B018
