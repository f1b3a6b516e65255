"""The page of dashboards runs: the URLs of Grafana's panels, and a connection as Superset makes it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.support.documents.page_runner import PageRunner
from tests.support.packages import NotInstalledError, installed
from tests.support.repository import ROOT

from understudy.testing import Server, StoreDefinition


@pytest.fixture
def packages() -> Path:
    """SQLAlchemy as Superset has it, and DuckDB for it."""
    try:
        folder = installed("dashboards", "--no-deps", "sqlalchemy==1.4.54", "duckdb-engine==0.17.0")
    except NotInstalledError as error:
        pytest.skip(str(error))
    return folder


@pytest.mark.full
def test_every_block_of_the_page_runs(packages: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(ROOT / "docs/examples/duckdb_state.py", folder)
    rows = [{"tailnum": tail, "flights": 1} for tail in ("N14228", "N24211", "N1")]
    with Server({"aircraft": StoreDefinition({"tailnum": "string"}, {"flights": "long"}, rows)}) as server:
        server.commit({"aircraft": {"N14228": {"flights": 111}, "N24211": {"flights": 2}}})
        path = [folder, packages, *(each for each in sys.path if each)]
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "UNDERSTUDY_URL": server.url,
        }
        assert PageRunner(folder, environment).run_page(ROOT / "docs/how-to/dashboards.md") == 5
