"""How Spark finds the source, and what it finds where the source's packages are missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

import pyspark_understudy
import understudy_pipeline
from understudy_pipeline.aligned.option_parsing import parse_options
from understudy_pipeline.aligned.source import AlignedSource
from understudy_shared.base.errors import SettingsError


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


def test_the_clients_of_servers_are_loaded_where_they_are_configured_and_never_pandas() -> None:
    """Spark loads the source in a process to look for it, one to make it, one to plan, and in each worker."""
    code = "import sys, understudy_pipeline.aligned.source; sys.stdout.write(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert "pyarrow" in loaded
    assert not {"confluent_kafka", "redis", "pandas", "asyncio", "pyarrow.parquet"} & set(loaded)


@pytest.mark.parametrize(
    ("kind", "module", "server"),
    [
        ("kafka", "kafka_config", "127.0.0.1:1"),
        ("redis", "redis_streams", "redis://127.0.0.1:1"),
        ("files", "files", "/"),
    ],
)
def test_a_client_that_is_not_installed_is_reported_with_the_option_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, module: str, server: str
) -> None:
    monkeypatch.setitem(sys.modules, f"understudy_pipeline.inputs.{module}", None)
    with pytest.raises(SettingsError, match=f"option {kind}.*pip install"):
        parse_options({kind: server, "topics": "weather"})


def test_the_package_names_what_it_exports_and_nothing_else() -> None:
    for name in understudy_pipeline.__all__:
        assert getattr(understudy_pipeline, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Announcer'"):
        understudy_pipeline.Announcer  # noqa: B018
