"""What each release of Spark writes is answered as that release's own reader has it, of every kind and in every format.

Each release runs in an environment and a JVM of its own.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.oracle.custom_compared import assert_answered_by_a_node
from tests.support.oracle.finished import assert_results
from tests.support.oracle.kinds_compared import assert_equal
from tests.support.oracle.record import record
from tests.support.oracle.releases import RELEASES, NoSparkError, Written, formats_of, written_by
from tests.support.spark.kinds import BRANCHES

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", params=RELEASES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    line: str = request.param
    try:
        return written_by(line, tmp_path_factory.mktemp(f"spark-{line}"))
    except NoSparkError as error:
        pytest.skip(str(error))


def test_every_key_of_every_kind_at_every_version_is_what_that_spark_reads(written: Written, tmp_path: Path) -> None:
    for state_format in formats_of(written.line):
        oracle = written.oracle("kinds", state_format)
        assert {store.operator for store in oracle.stores.values()} == {*BRANCHES, "stateStoreSave"}
        for version in oracle.versions:
            with closing(CheckpointReader(oracle.path, tmp_path / f"{state_format.id}-{version}")) as reader:
                assert {store.name: store.kind for store in reader.stores.values()} == {
                    store.name: store.kind for store in oracle.stores.values()
                }
                for store in oracle.stores.values():
                    assert_equal(reader, store, version)
        record(f"{written.release}-kinds-{state_format.id}", oracle.compared(written.release))


def test_a_node_serves_what_each_release_wrote(written: Written, tmp_path: Path) -> None:
    for state_format in formats_of(written.line):
        oracle = written.oracle("kinds", state_format)
        assert_answered_by_a_node(oracle, tmp_path / state_format.id)


def test_every_result_is_what_the_query_of_that_release_put_out(written: Written, tmp_path: Path) -> None:
    checkpoint, announced, rows = written.finished()
    assert_results(checkpoint, tmp_path / "data", announced, rows)
