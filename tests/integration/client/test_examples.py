"""The programs of docs/examples read state as they say, tested as a user would test them: by `understudy.testing`."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from runpy import run_path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests.support.repository import ROOT

from understudy import Client, UnknownStoreError, UnreachableError
from understudy.testing import Server, StoreDefinition, Trouble
from understudy_shared.base.sockets import free_port

EXAMPLES = ROOT / "docs/examples"
SECOND = timedelta(seconds=1)
NOTEBOOK = EXAMPLES / "state_in_a_notebook.ipynb"


@pytest.fixture
def server() -> Iterator[Server]:
    store = StoreDefinition(
        key={"tailnum": "string"},
        value={"flights": "long", "delay_sum": "long"},
        rows=[{"tailnum": tail, "flights": 1, "delay_sum": 0} for tail in ("N14228", "N24211", "N1")],
    )
    with Server({"aircraft": store}) as running:
        running.commit({"aircraft": {"N14228": {"flights": 111, "delay_sum": 7}, "N24211": {"flights": 2}}})
        yield running


@pytest.fixture
def example(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """The names of an example, whose clients without a URL ask the server."""
    monkeypatch.setenv("UNDERSTUDY_URL", server.url)
    return lambda name: run_path(str(EXAMPLES / name), run_name=Path(name).stem)


def troubles(server: Server, *others: Callable[[], Trouble]) -> list[Callable[[], Trouble]]:
    """Return the troubles of a server in which a program gets no fresh state."""
    return [lambda: server.lag(120 * SECOND), server.fail, server.cut, *others]


@asynccontextmanager
async def started(service: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that has started, until the block ends."""
    transport = httpx.ASGITransport(service)
    async with (
        service.router.lifespan_context(service),
        httpx.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        yield client


async def test_the_fastapi_service_answers_and_makes_errors_to_http(server: Server, example: Any) -> None:
    names = example("fastapi_service.py")
    async with started(names["create_app"](lambda: server.async_client(retries=0))) as service:
        found = (await service.get("/aircraft/N14228")).json()
        assert (found["tail"], found["flights"], found["version"]) == ("N14228", 111, 2)
        assert (await service.get("/aircraft/N0")).status_code == 404
        for begin in troubles(server, lambda: server.slow(30 * SECOND)):
            with begin():
                refused = await service.get("/aircraft/N14228")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        with server.fail("bad-key"):
            assert (await service.get("/aircraft/N14228")).status_code == 400
    async with started(names["app"]) as service:
        assert (await service.get("/aircraft/N1")).json()["flights"] == 1


def test_features_that_cannot_be_read_in_time_are_the_default(server: Server, example: Any) -> None:
    names = example("model_features.py")
    assert names["DEADLINE"] == timedelta(milliseconds=5)
    features, default = names["Features"], names["DEFAULT"]
    with server.client(retries=0) as client:
        reader = names["FeatureReader"](client, deadline=30 * SECOND)
        assert reader.read(["N14228", "N0", "N1"]) == [features(111, 7), default, features(1, 0)]
        assert reader.defaults == 1
        for begin in troubles(server):
            with begin():
                assert reader.read(["N14228", "N1"]) == [default, default]
        late = names["FeatureReader"](client)
        with server.slow(30 * SECOND):
            assert late.read(["N14228"]) == [default]
        assert (reader.defaults, late.defaults) == (7, 1)


def test_polars_joins_state_with_a_file(server: Server, example: Any, tmp_path: Path) -> None:
    fleet = tmp_path / "planes.csv"
    fleet.write_text("tailnum,manufacturer\nN14228,BOEING\nN24211,AIRBUS\nN1,BOEING\nN0,CESSNA\n")
    with server.client() as client:
        joined = example("polars_join.py")["by_manufacturer"](client, fleet)
    assert joined.rows() == [("BOEING", 112, 2), ("AIRBUS", 2, 1)]


@pytest.mark.full
def test_the_streamlit_page_shows_state_and_says_when_there_is_none(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Behind the packages of .venv: it brings only those that are not there.
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / ".cache/streamlit")])
    testing = pytest.importorskip("streamlit.testing.v1", reason="no Streamlit: make validators installs it")
    monkeypatch.setenv("UNDERSTUDY_URL", server.url)
    page = testing.AppTest.from_file(str(EXAMPLES / "streamlit_page.py"), default_timeout=60).run()
    assert list(page.dataframe[0].value["tailnum"]) == ["N14228", "N24211", "N1"]
    page.number_input[0].set_value(1).run()
    assert list(page.dataframe[0].value["flights"]) == [111]
    page.text_input[0].set_value("N14228").run()
    assert (page.metric[0].value, not page.error, not page.exception) == ("111", True, True)
    page.text_input[0].set_value("N0").run()
    assert "N0" in page.warning[0].value
    with server.fail():
        page.text_input[0].set_value("N14228").run()
        assert len(page.error) == 2
    assert not page.exception


def test_the_cells_of_the_notebook_run(example: Any) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "the notebook is kept without outputs"
            exec("".join(cell["source"]), names)
    assert names["busiest"].values.tolist() == [["N14228", 111], ["N24211", 2]]
    assert names["grown"].to_dict() == {"N14228": 110, "N24211": 1, "N1": 0}
    names["client"].close()


@pytest.mark.full
def test_a_spark_job_reads_one_version_while_the_query_goes_on(server: Server, example: Any, spark: Any) -> None:
    names = example("spark_snapshot.py")
    assert names["report"](spark, server.url) == (2, 114)
    with server.client() as client, client.snapshot() as held:
        server.commit({"aircraft": {"N1": {"flights": 1000}}})
        rows = names["rows_at"](spark, server.url, held.token, partitions=2)
        assert {row["tailnum"]: row["flights"] for row in rows.collect()} == {"N14228": 111, "N24211": 2, "N1": 1}


def test_a_transport_over_httpx_answers_and_fails_as_the_default_does(
    server: Server, example: Callable[[str], dict[str, Any]]
) -> None:
    make = example("httpx_transport.py")["HttpxTransport"]
    with httpx.Client() as own, Client(server.url, transport=make(own)) as client:
        assert client.store("aircraft").get("N14228").value["flights"] == 111
        assert [row.key["tailnum"] for row in client.store("aircraft").scan(order="key", limit=2)] == ["N1", "N14228"]
        with pytest.raises(UnknownStoreError):
            client.store("nothing").get("a")
    with (
        httpx.Client() as own,
        Client(f"http://127.0.0.1:{free_port()}", transport=make(own)) as client,
        pytest.raises(UnreachableError, match="no server gave an answer"),
    ):
        client.store("aircraft").get("N14228")
