"""What each release of Spark keeps of `transformWithState` is answered as that release's own reader has it.

Queries are in Python and in Scala, their state in rows and in Avro. Each release runs in an environment of its own.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.oracle.changed_columns import CHANGED_FORMAT
from tests.support.oracle.custom_compared import (
    assert_answered_by_a_node,
    assert_every_version_equal,
    assert_variable_equal,
)
from tests.support.oracle.custom_state import BATCHES, copied, write_custom_checkpoint
from tests.support.oracle.kinds import PARTITIONS, KindsCheckpoint
from tests.support.oracle.record import record
from tests.support.oracle.releases import (
    CHANGED,
    CUSTOM_FORMS,
    PYTHON,
    RELEASES,
    SCALA,
    NoSparkError,
    Written,
    custom_formats_of,
    has_transform,
    operators_of,
    written_by,
)

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

KINDS = {SCALA: {"value": 5, "list": 3, "map": 3, "timers": 2}, PYTHON: {"value": 3, "list": 3, "map": 3, "timers": 2}}
OF_PANDAS_ALONE = {"value": 1, "list": 1, "timers": 1}
"""What the query in Python keeps in Spark 4.0."""
MERGE_OPERATOR = '"spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion":"2"'


@pytest.fixture(scope="module", params=RELEASES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    line: str = request.param
    try:
        return written_by(line, tmp_path_factory.mktemp(f"spark-{line}"), "write_custom_state")
    except NoSparkError as error:
        pytest.skip(str(error))


FORMS = pytest.mark.parametrize(
    ("language", "form"), [(language, form) for language, forms in CUSTOM_FORMS.items() for form in forms]
)


@pytest.fixture
def oracle(written: Written, language: str, form: str) -> KindsCheckpoint:
    return written.oracle(language, custom_formats_of(written.line)[form])


@FORMS
def test_what_the_comparison_is_about_did_occur(oracle: KindsCheckpoint, written: Written, language: str) -> None:
    has_pandas_alone = language == PYTHON and written.line == (4, 0)
    assert Counter(store.kind for store in oracle.stores.values()) == (
        OF_PANDAS_ALONE if has_pandas_alone else KINDS[language]
    )
    assert len(oracle.versions) == 2
    for store in oracle.stores.values():
        assert all(store.kept[version] for version in oracle.versions), f"{store.name} keeps nothing"
        assert {kept.partition for kept in store.kept[oracle.last]} == set(range(PARTITIONS)), store.name
    lists = [store for store in oracle.stores.values() if store.kind == "list"]
    assert max(len(kept.said["values"]) for store in lists for kept in store.kept[oracle.last]) > 5
    conf = (oracle.path / "offsets" / str(oracle.last - 1)).read_text()
    assert (MERGE_OPERATOR in conf) is (written.line > (4, 1)), "values of a list are separated up to Spark 4.1"
    assert f'"spark.sql.streaming.stateStore.encodingFormat":"{oracle.state_format.encoding}"' in conf


@FORMS
def test_every_key_at_every_retained_version_is_what_that_spark_reads(
    oracle: KindsCheckpoint, written: Written, language: str, tmp_path: Path
) -> None:
    assert_every_version_equal(oracle, tmp_path)
    record(f"{written.release}-{language}-{oracle.state_format.id}", oracle.compared(written.release))


def test_columns_that_changed_are_those_that_that_spark_reads(written: Written, tmp_path: Path) -> None:
    if not has_transform(written.line):
        pytest.skip("PySpark has no transformWithState")
    oracle = written.oracle(CHANGED, CHANGED_FORMAT)
    assert len(list((oracle.path / "state/0/_stateSchema/default").glob("[0-9]*"))) == 2
    (mixed,) = (kept.said["values"] for kept in oracle.stores["log"].kept[oracle.last] if kept.key == ["w5"])
    assert {each["value"]["added"] is None for each in mixed} == {True, False}, "a list has values of both"
    with closing(CheckpointReader(oracle.path, tmp_path)) as reader:
        for store in oracle.stores.values():
            assert store.kept[oracle.last], store.name
            assert_variable_equal(reader, store, oracle.last)


@pytest.mark.parametrize("form", ["changelog", "changelog-avro"])
def test_what_an_earlier_spark_began_and_a_later_one_continued_is_what_the_later_one_reads(
    form: str, written: Written, spark: SparkSession, tmp_path: Path
) -> None:
    began = written.oracle(PYTHON, custom_formats_of(written.line)[form])
    copied(began.path, tmp_path)
    oracle = write_custom_checkpoint(
        spark, tmp_path, began.state_format, operators=operators_of(written.line), batch_count=BATCHES + 2
    )
    assert oracle.versions[0] > began.last
    for version in oracle.versions:
        with closing(CheckpointReader(oracle.path, tmp_path / str(version))) as reader:
            for store in oracle.stores.values():
                assert store.kept[version], store.name
                assert_variable_equal(reader, store, version)


@FORMS
def test_every_key_is_answered_by_a_node(oracle: KindsCheckpoint, tmp_path: Path) -> None:
    assert_answered_by_a_node(oracle, tmp_path / "data")
