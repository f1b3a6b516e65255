"""`docs/oracle.md` and the README's table say what `docs/oracle.json` has: what was compared with Spark."""

from __future__ import annotations

from pathlib import Path

from tests.support.oracle.record import Compared, compared, record
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tools.oracle_document import DOCUMENT, README, collected, document, kept, readme_table, with_table


def test_the_documents_are_drawn_from_what_was_compared() -> None:
    lines = kept()
    assert lines
    assert DOCUMENT.read_text() == document(lines), "python -m tools.oracle_document --keep"
    assert README.read_text() == with_table(README.read_text(), readme_table(lines))


def lines_of(state_format: StateFormat, spark: str) -> list[Compared]:
    said = [{"a": {"rows": [1, 2]}, "b": {"value": {}}}, {"b": {"rows": []}, "c": {"sessions": [1]}}]
    return [
        compared(spark, "symmetricHashJoin", "join-side", state_format, said),
        compared(spark, "rewindWithState", "value", state_format, said[:1]),
    ]


def test_what_tests_record_is_what_the_table_says(tmp_path: Path) -> None:
    record("one", lines_of(HDFS_V1, "4.10.1"), tmp_path)
    record("one", lines_of(HDFS_V1, "4.9.0"), tmp_path)
    record("two", lines_of(ROCKSDB_CHANGELOG_V2, "4.10.1"), tmp_path)
    record("three", lines_of(StateFormat("hdfs", codec="zstd", row_checksum=True), "4.10.1"), tmp_path)
    lines = collected(tmp_path)
    text = document(lines)
    assert "| operator | 4.9.0 | 4.10.1 |" in text
    assert "| stream-stream join | 4 | 8 |" in text
    assert "Together: 21 elements in 6 stores of 2 releases of Spark." in text
    assert "| 4.9.0 | 2 operators, 7 elements | - | - | - | - |" in readme_table(lines)
