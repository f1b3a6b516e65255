"""Writes `docs/oracle.md` and the README's table from what tests compared: `python -m tools.oracle_document`.

Tests leave what they compared in `.cache/oracle/` (`tests/support/oracle/record.py`); `make verify` runs all of them.
With `--keep` it renders `docs/oracle.json` again and collects nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.support.oracle.record import FOLDER, Compared

ROOT = Path(__file__).resolve().parents[1]
MEASURED, DOCUMENT, README = ROOT / "docs" / "oracle.json", ROOT / "docs" / "oracle.md", ROOT / "README.md"
BEGIN, END = "<!-- oracle: python -m tools.oracle_document -->\n", "<!-- /oracle -->\n"

Layout = tuple[str, int, bool]
"""Provider, checkpoint format, whether with a changelog."""

LAYOUTS: dict[Layout, str] = {
    ("hdfs", 1, False): "HDFS-backed",
    ("rocksdb", 1, False): "RocksDB, v1",
    ("rocksdb", 1, True): "RocksDB, v1, changelog",
    ("rocksdb", 2, False): "RocksDB, v2",
    ("rocksdb", 2, True): "RocksDB, v2, changelog",
}
OPERATORS = {
    "stateStoreSave": "aggregation",
    "StatefulStreamlineAggregate": "aggregation in Real-Time Mode",
    "sessionWindowStateStoreSaveExec": "session window",
    "dedupe": "`dropDuplicates`",
    "dedupeWithinWatermark": "`dropDuplicatesWithinWatermark`",
    "symmetricHashJoin": "stream-stream join",
    "applyInPandasWithState": "`applyInPandasWithState`",
    "globalLimit": "limit",
    "transformWithStateExec": "`transformWithState` in Scala",
    "transformWithStateInPySparkExec": "`transformWithState` in Python",
    "transformWithStateInPandasExec": "`transformWithStateInPandas`",
}
"""Spark's names of operators as users know them; another is shown by Spark's name."""


def collected(folder: Path = FOLDER) -> list[Compared]:
    """Read what tests left, in an order that is always the same."""
    lines = [Compared(**line) for file in folder.glob("*.json") for line in json.loads(file.read_text())]
    return sorted(lines, key=lambda line: (_release(line.spark), line.operator, line.provider, str(line)))


def document(lines: Sequence[Compared]) -> str:
    """Render the whole of docs/oracle.md."""
    return f"{_BEGINNING}{''.join(_tables(lines))}{_END}"


def readme_table(lines: Sequence[Compared]) -> str:
    """Render a line for each release of Spark."""
    rows = ["| Spark | " + " | ".join(LAYOUTS.values()) + " |", "|---|" + "---|" * len(LAYOUTS)]
    for spark in _releases(lines):
        of_release = [line for line in lines if line.spark == spark]
        rows.append(f"| {spark} | " + " | ".join(_kinds(of_release, layout) for layout in LAYOUTS) + " |")
    return "\n".join(rows) + "\n"


def with_table(readme: str, table: str) -> str:
    """Return the README with its table replaced."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"README.md has no place for the table: {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{table}{END}{after}"


_BEGINNING = """\
# What is compared with Spark

`python -m tools.oracle_document` writes this file from what the tests compared (`make verify` runs all of them).

Each release of Spark writes the checkpoints during the run, in an environment of its own, with its own state reader as
the oracle. Every key of every store is looked up at every retained version, keys that are gone among them, and the
whole answer is compared: value, sessions, rows, flags, expiry and partition. **All were equal**: a test that finds a
difference records nothing. One case is taken as equal that is not: a set of Spark 4.1 or earlier that keeps 0.0 is
found by -0.0, too (docs/api.md says why).

Elements are the values, sessions or rows of all versions together. `docs/oracle.json` has keys and versions, by layout
of the state; other codecs, row checksums, Spark's checkpoint manager, Real-Time Mode and columns of type `variant` are
in it, too.
"""

_END = """
## Releases

- The newest of each line is installed with `uv` when the test first needs it (`tests/support/oracle/releases.py`);
  where it cannot be had, its cases are skipped by name.
- From Spark 3.5 on, each release's query of every aggregate is held to the rows that it put out
  ([results.md](results.md)).
- Spark 3 has no reader of its own state: that of Spark 4.3 reads its checkpoints, but not session windows in RocksDB;
  there the same batches in the HDFS-backed provider say what they are.
- RocksDB state of Spark 3.2 is not compared: by Spark's own reader, too, the row indices of its joins have gaps.
- 19 checkpoints of Spark 3.1 to 4.0 in Spark's own test resources are compared in the same way, and 16 others are
  refused by name (`tests/contract/node/stores/test_golden_checkpoints.py`); they are not counted here.
- Spark 4.0 cannot run a limit in checkpoint format 2 (an assertion of its own fails), so its query runs in format 1.
- The reader of Spark 4.0 cannot read `transformWithState` in checkpoint format 2.
- State in Avro whose columns changed, and checkpoints that an earlier Spark began and Spark 4.3 continued, are compared
  too, and not counted here.
"""


def _tables(lines: Sequence[Compared]) -> Iterator[str]:
    """Render the elements of each operator by release, and of each release by layout."""
    releases = _releases(lines)
    yield f"\n## By operator\n\n| operator | {' | '.join(releases)} |\n|---|{'---|' * len(releases)}\n"
    by_name = {OPERATORS.get(line.operator, line.operator): line.operator for line in lines}
    for name in sorted(by_name, key=lambda each: each.strip("`")):
        found = [line for line in lines if line.operator == by_name[name]]
        sums = [sum(line.elements for line in found if line.spark == spark) for spark in releases]
        yield f"| {name} | {' | '.join(f'{elements:,}' if elements else '-' for elements in sums)} |\n"
    total = sum(line.elements for line in lines)
    yield f"\nTogether: {total:,} elements in {len(lines)} stores of {len(releases)} releases of Spark.\n"
    yield f"\n## By layout of the state\n\n{readme_table(lines)}"


def _kinds(lines: Sequence[Compared], layout: Layout) -> str:
    found = [line for line in lines if _layout(line) == layout]
    operators = len({line.operator for line in found})
    return f"{operators} operators, {sum(line.elements for line in found):,} elements" if found else "-"


def _layout(line: Compared) -> Layout:
    return line.provider, line.format_version, line.changelog


def _releases(lines: Sequence[Compared]) -> list[str]:
    return sorted({line.spark for line in lines}, key=_release)


def _release(spark: str) -> tuple[int, ...]:
    return tuple(int(part) for part in spark.split(".") if part.isdigit())


def main() -> None:
    """Collect, unless `--keep` is given; then render."""
    if sys.argv[1:] != ["--keep"]:
        MEASURED.write_text("[\n" + ",\n".join(json.dumps(asdict(line)) for line in collected()) + "\n]\n")
    lines = kept()
    DOCUMENT.write_text(document(lines))
    README.write_text(with_table(README.read_text(), readme_table(lines)))


def kept() -> list[Compared]:
    """Read docs/oracle.json."""
    return [Compared(**line) for line in json.loads(MEASURED.read_text())]


if __name__ == "__main__":
    main()
