"""Feast's own package serves features out of running state, by the online store of docs/examples."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.documents.page_runner import PageRunner
from tests.support.packages import NotInstalledError, installed
from tests.support.repository import ROOT

from understudy.testing import Server, StoreDefinition

NOW = datetime.now(UTC)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AIRCRAFT: dict[str, Any] = {
    "name": "aircraft",
    "keys": {"tailnum": "STRING"},
    "columns": {"flights": "long", "dep_delay_mean": "double", "last_seen": "time", "code": "bytes", "gates": "longs"},
    "ttl_s": 86_400,
    "tags": {"event_time": "last_seen"},
}
HOURS: dict[str, Any] = {
    "name": "hours",
    "keys": {"origin": "STRING", "hour": "UNIX_TIMESTAMP"},
    "columns": {"n": "long"},
    "ttl_s": 0,
}

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def packages() -> Path:
    """Feast, and what it needs: more than this project does, and older versions of it."""
    try:
        return installed("feast", "feast==0.67.0")
    except NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture
def variables(packages: Path, server: Server) -> dict[str, str]:
    """The environment of a process with Feast, whose clients ask the server."""
    path = [packages, ROOT / "docs/examples", *(each for each in sys.path if each)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, path)), "UNDERSTUDY_URL": server.url}


@pytest.fixture
def server() -> Iterator[Server]:
    row = {"delays": 30.0, "known": 4, "last_seen": NOW, "code": b"\x00\xff", "gates": [1, None]}
    rows = [
        {**row, "tailnum": "N14228", "flights": 111},
        {**row, "tailnum": "N24211", "flights": 2**62, "delays": None, "known": 0, "code": None, "gates": None},
        {**row, "tailnum": "N1", "flights": 1, "last_seen": NOW - timedelta(days=2)},
    ]
    value = {"flights": "long", "delays": "double", "known": "long", "last_seen": "timestamp", "code": "binary"}
    mean = {"dep_delay_mean": {"function": "avg", "buffers": ["delays", "known"]}}
    stores = {
        "aircraft": StoreDefinition({"tailnum": "string"}, {**value, "gates": "array<long>"}, rows, result=mean),
        "hours": StoreDefinition(
            {"origin": "string", "hour": "timestamp"}, {"n": "long"}, [{"origin": "JFK", "hour": NOON, "n": 7}]
        ),
    }
    with Server(stores) as running:
        yield running


@pytest.fixture
def ask(variables: dict[str, str], server: Server) -> Iterator[Callable[..., Any]]:
    """A process with a feature store, and what it answers to a line."""
    command = [sys.executable, "-m", "tests.support.clients.feast_reads", server.url]
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, lines = process.stdin, process.stdout

        def asked(**question: Any) -> Any:
            questions.write(json.dumps(question) + "\n")
            questions.flush()
            return next(json.loads(line) for line in lines if line.startswith(('{"', '"')))

        yield asked
        process.stdin.close()


def test_features_are_what_a_lookup_says(server: Server, ask: Callable[..., Any]) -> None:
    assert (ask(apply=AIRCRAFT), ask(apply={**HOURS, "tags": {}})) == ("applied", "applied")
    names, tails = AIRCRAFT["columns"], ["N24211", "N14228", "N0", "N14228"]
    found = ask(features=[f"aircraft:{name}" for name in names], rows=[{"tailnum": each} for each in tails])
    with server.client() as client:
        looked_up = client.store("aircraft").get_many(tails)
    said = [{**(each.value or {}), **(each.result or {})} for each in looked_up]
    assert found["tailnum"] == tails
    for name in ("flights", "dep_delay_mean"):
        assert found[name] == [each.get(name) for each in said]
    assert found["flights"] == [2**62, 111, None, 111]
    assert found["dep_delay_mean"] == [None, 7.5, None, 7.5]
    assert found["code"] == [None, "00ff", None, "00ff"]
    assert found["last_seen"][0] == NOW.replace(microsecond=0).isoformat(), "Feast keeps seconds of a feature"
    assert found["times"][0] == NOW.isoformat()
    assert ask(features=["hours:n"], rows=[{"origin": "JFK", "hour": int(NOON.timestamp())}])["n"] == [7]
    server.commit({"aircraft": {"N14228": {"flights": 112, "last_seen": NOW}}})
    assert ask(features=["aircraft:flights"], rows=[{"tailnum": "N14228"}])["flights"] == [112]


def test_a_row_older_than_the_ttl_is_not_found_and_a_stale_answer_is_an_error(
    server: Server, ask: Callable[..., Any]
) -> None:
    question = {"features": ["aircraft:flights"], "rows": [{"tailnum": "N1"}]}
    ask(apply=AIRCRAFT)
    assert ask(**question)["flights"] == [None]
    ask(apply={**AIRCRAFT, "ttl_s": 0})
    assert ask(**question)["flights"] == [1]
    with server.lag(timedelta(seconds=30)):
        assert ask(**question).startswith("UnavailableError")


def test_a_view_that_does_not_fit_its_store_is_refused_and_so_is_a_write(ask: Callable[..., Any]) -> None:
    assert "there is no store 'hour'" in ask(apply={**HOURS, "tags": {"store": "hour"}})
    assert "joins by ['origin']" in ask(apply={**HOURS, "tags": {}, "keys": {"origin": "STRING"}})
    assert "has no ['m']" in ask(apply={**HOURS, "tags": {}, "columns": {"m": "long"}})
    assert ask(apply={**HOURS, "tags": {}}) == "applied"
    said = ask(write="hours", row={"origin": "JFK", "hour": int(NOON.timestamp()), "n": 1})
    assert said == "NotImplementedError: Spark writes hours: there is nothing to materialize or to push"


def test_the_page_runs(variables: dict[str, str], packages: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(ROOT / "docs/examples/feast_online_store.py", folder)
    environment = variables | {"PATH": f"{packages}/bin:{variables['PATH']}", "HOME": str(tmp_path)}
    reader = PageRunner(folder, environment)
    assert reader.run_page(ROOT / "docs/how-to/feature-stores.md") == 4
