"""Which snapshot is trusted, what it holds, and which files follow it."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.changelog import LineageItem
from understudy_node.checkpoint.logs import parse_commit
from understudy_node.checkpoint.snapshots import (
    StateFile,
    choose_snapshot,
    committed_unique_ids,
    extend_by_lineage,
    parse_snapshot_zip,
    parse_state_file_name,
    parse_state_files,
    patch_merge_operator,
    why_not_next,
)
from understudy_shared.base.errors import CorruptFileError

A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("4.delta", StateFile(4, None, "delta", "4.delta")),
        ("4.snapshot", StateFile(4, None, "snapshot", "4.snapshot")),
        (f"12_{A}.changelog", StateFile(12, A, "changelog", f"12_{A}.changelog")),
        (f"12_{A}.zip", StateFile(12, A, "zip", f"12_{A}.zip")),
        (f"12_{A}.zip.crc", None),
        (".4.delta.crc", None),
        (".4.delta.00000000.tmp", None),
        ("04.delta", None),
        ("4_x.delta", None),
        ("SSTs", None),
        ("_metadata", None),
        ("٣.delta", None),
    ],
)
def test_only_state_files_are_taken_from_a_listing(name: str, file: StateFile | None) -> None:
    assert parse_state_file_name(name) == file


@pytest.mark.parametrize(("snapshot", "changes"), [("snapshot", "delta"), ("zip", "changelog")])
def test_a_snapshot_older_than_the_changes_of_its_version_is_stale_and_left_out(
    snapshot: Literal["snapshot", "zip"], changes: str
) -> None:
    files = parse_state_files([f"2.{snapshot}", f"4.{snapshot}", f"4.{changes}"])
    times = {f"2.{snapshot}": 20, f"4.{snapshot}": 40, f"4.{changes}": 41}
    chosen, left_out = choose_snapshot(files, at_most_version=4, mtimes_ns=times)
    assert chosen == parse_state_file_name(f"2.{snapshot}")
    assert left_out == {StateFile(4, None, snapshot, f"4.{snapshot}"): "stale-snapshot"}
    fresh, _ = choose_snapshot(files, at_most_version=4, mtimes_ns={**times, f"4.{changes}": 40})
    assert fresh == parse_state_file_name(f"4.{snapshot}")


def test_only_the_committed_attempts_snapshot_is_chosen() -> None:
    files = parse_state_files([f"2_{A}.zip", f"4_{B}.zip", f"4_{C}.zip", f"3_{C}.zip", "4.zip", f"6_{A}.zip"])
    chosen, left_out = choose_snapshot(files, at_most_version=4, wanted_unique_ids={4: C, 2: A})
    assert chosen == parse_state_file_name(f"4_{C}.zip")
    assert {file.name: reason for file, reason in left_out.items()} == {
        f"4_{B}.zip": "not-the-committed-attempt",
        "4.zip": "not-the-committed-attempt",
        f"3_{C}.zip": "attempt-unknown",
        f"2_{A}.zip": "older",
        f"6_{A}.zip": "above-last-commit",
    }


@given(
    versions=st.sets(st.integers(1, 9)),
    at_most=st.integers(0, 9),
    ids=st.none() | st.dictionaries(st.integers(1, 9), st.sampled_from([A, B])),
)
def test_a_chosen_snapshot_is_always_committed_and_nothing_disappears(
    versions: set[int], at_most: int, ids: dict[int, str] | None
) -> None:
    files = parse_state_files(
        [f"{v}.zip" for v in versions]
        if ids is None
        else [f"{v}_{unique_id}.zip" for v in versions for unique_id in (A, B)]
    )
    chosen, left_out = choose_snapshot(files, at_most_version=at_most, wanted_unique_ids=ids)
    usable = [v for v in versions if v <= at_most and (ids is None or v in ids)]
    assert (chosen.version if chosen else None) == max(usable, default=None)
    if chosen and ids is not None:
        assert chosen.unique_id == ids[chosen.version]
    assert sorted([*left_out, *([chosen] if chosen else [])]) == sorted(files)


def test_a_zip_says_which_tables_to_bring_under_which_names() -> None:
    manifest = parse_snapshot_zip(spark.snapshot_zip(), name="4.zip", merge_operator_version=2)
    (table,) = manifest.sst_files
    assert (table.local_name, table.dfs_name, table.size_bytes) == ("000008.sst", "000008-ab.sst", 1822)
    assert set(manifest.members) == {"MANIFEST-000005", "CURRENT", "000004.log", "OPTIONS-000007"}
    assert (manifest.num_keys, manifest.num_internal_keys, manifest.total_keys) == (27, 3, 30)
    assert manifest.column_families == {"default": 1, "$ttl_a": 2}
    assert b"\n  merge_operator={id=StringAppendOperator;delimiter=}\n  x=y\n" in manifest.members["OPTIONS-000007"]


def test_an_uncounted_snapshot_has_no_total() -> None:
    manifest = parse_snapshot_zip(spark.snapshot_zip(num_keys=-1), name="4.zip", merge_operator_version=2)
    assert manifest.total_keys is None


@pytest.mark.parametrize(
    ("version", "line", "patched"),
    [
        (2, b"StringAppendOperator", b"{id=StringAppendOperator;delimiter=}"),
        (1, b"{id=StringAppendOperator;delimiter=,;}", b"{id=StringAppendOperator;delimiter=,;}"),
        (1, b"StringAppendOperator", b"{id=StringAppendOperator;delimiter=,;}"),
        (2, b"nullptr", b"nullptr"),
    ],
)
def test_the_merge_delimiter_is_spelt_out(version: int, line: bytes, patched: bytes) -> None:
    options = b"[CFOptions]\n  max_successive_merges=0\n  merge_operator=%b\n  bottommost=1\n"
    assert patch_merge_operator(options % line, version) == options % patched


def test_no_prefix_of_a_zip_is_accepted() -> None:
    data = spark.snapshot_zip()
    for cut in range(len(data)):
        with pytest.raises(CorruptFileError, match=r"4\.zip"):
            parse_snapshot_zip(data[:cut], name="4.zip", merge_operator_version=2)


def test_a_flipped_bit_in_a_zip_is_refused() -> None:
    data = bytearray(spark.snapshot_zip(extra={"noise": bytes(range(256))}))
    data[data.index(b"noise") + 60] ^= 0x10
    with pytest.raises(CorruptFileError, match=r"4\.zip"):
        parse_snapshot_zip(bytes(data), name="4.zip", merge_operator_version=2)


@pytest.mark.parametrize("name", ["../CURRENT", "/etc/passwd", "a/b"])
def test_a_zip_cannot_name_files_elsewhere(name: str) -> None:
    with pytest.raises(CorruptFileError, match="plain file name"):
        parse_snapshot_zip(spark.snapshot_zip(extra={name: b""}), name="4.zip", merge_operator_version=2)
    with pytest.raises(CorruptFileError, match="plain file name"):
        parse_snapshot_zip(spark.snapshot_zip(sst_files=[(name, "x", 1)]), name="4.zip", merge_operator_version=2)


def test_a_zip_bomb_is_refused() -> None:
    data = spark.snapshot_zip(extra={"zeros": bytes(2000)})
    with pytest.raises(CorruptFileError, match="more than the 1000 bytes"):
        parse_snapshot_zip(data, name="4.zip", merge_operator_version=2, max_bytes=1000)


def test_commits_name_the_attempt_of_every_version_by_store() -> None:
    commits = [parse_commit(spark.commit(0, {"0": [["p0s0", f"p0s1b{batch}"]]}), batch) for batch in (3, 4)]
    assert committed_unique_ids(commits, operator_id=0, partition=0, store_index=1) == {4: "p0s1b3", 5: "p0s1b4"}
    assert committed_unique_ids(commits, operator_id=0, partition=1, store_index=0) == {}
    v1 = [parse_commit(spark.commit(), 3)]
    assert committed_unique_ids(v1, operator_id=0, partition=0, store_index=0) is None


def test_a_committed_lineage_names_versions_whose_commits_are_purged() -> None:
    assert extend_by_lineage({5: B, 6: C}, [LineageItem(4, A), LineageItem(5, B)], name="6_c") == {4: A, 5: B, 6: C}
    with pytest.raises(CorruptFileError, match="version 5"):
        extend_by_lineage({5: B}, [LineageItem(5, A)], name="6_c")


@pytest.mark.parametrize(
    ("lineage", "applied", "refused"),
    [
        ([(4, A), (5, B)], {4: A, 5: B}, None),
        ([(5, B)], {4: A, 5: B}, None),  # the writer took a newer snapshot than the reader started from
        ([(3, C), (4, A), (5, B)], {5: B}, None),  # the reader started from a newer one
        ([], {}, None),
        ([(4, A), (5, C)], {4: A, 5: B}, "builds on"),
        ([(4, C), (5, B)], {4: A, 5: B}, "builds on"),
        ([(4, A)], {4: A, 5: B}, "does not name version 5"),
        (None, {5: B}, "no lineage"),
    ],
)
def test_a_changelog_of_a_dead_attempt_is_not_the_next_one(
    lineage: list[tuple[int, str]] | None, applied: dict[int, str], refused: str | None
) -> None:
    items = None if lineage is None else [LineageItem(*item) for item in lineage]
    reason = why_not_next(6, items, applied)
    assert (reason is None) == (refused is None)
    assert refused is None or (reason is not None and refused in reason)
