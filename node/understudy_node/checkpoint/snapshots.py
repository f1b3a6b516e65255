"""Chooses a snapshot by the names of state files, reads its manifest, and finds the attempt that made each version.

Rule: a snapshot is used only if the commit log vouches for it: not above the last committed version; in format v2 the
very attempt that was committed; in format v1 not older than the delta or changelog of its version, because a re-run
batch rewrites those but leaves the failed attempt's snapshot. Every skipped snapshot has a reason.

In format v2 the commit log names the winning attempt of every version it still holds; older ones are named by the
lineage inside a committed changelog. A file is part of a version only if one of these names it. Pure.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, cast

from understudy_node.checkpoint.changelog import LineageItem
from understudy_node.checkpoint.logs import Commit, checked, field, parse_document
from understudy_shared.base.errors import CorruptFileError

FileKind = Literal["delta", "changelog", "snapshot", "zip"]
LeftOutReason = Literal["above-last-commit", "not-the-committed-attempt", "attempt-unknown", "stale-snapshot", "older"]

# 18 digits: more may not fit into Spark's long. It writes no leading zeros.
_NAME = re.compile(
    r"(0|[1-9]\d{0,17})(?:_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?\.(delta|snapshot|changelog|zip)", re.ASCII
)
_MERGE_OPERATOR = re.compile(rb"^(\s*merge_operator=)[^\r\n]*StringAppend[^\r\n]*", re.MULTILINE)
_COMMA_OPERATOR: Final = rb"\g<1>{id=StringAppendOperator;delimiter=,;}"
_EMPTY_OPERATOR: Final = rb"\g<1>{id=StringAppendOperator;delimiter=}"
DEFAULT_MAX_ZIP_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, order=True)
class StateFile:
    """A state file, parsed from its name; `unique_id` is the writing attempt's (format v2 only)."""

    version: int
    unique_id: str | None
    kind: FileKind
    name: str

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds a whole version, not what one version changed."""
        return self.kind in {"snapshot", "zip"}

    @property
    def changes_beside(self) -> str | None:
        """Format v1: the delta or changelog of the snapshot's version, which every attempt writes first."""
        if self.unique_id is not None or not self.is_snapshot:
            return None
        return f"{self.version}.{'delta' if self.kind == 'snapshot' else 'changelog'}"


@dataclass(frozen=True, slots=True)
class SstFile:
    """A table file: `dfs_name` in the partition's `SSTs/`, `local_name` next to the manifest."""

    local_name: str
    dfs_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The contents of a RocksDB `.zip`. `members` are the small files to write out, OPTIONS already patched.

    `num_keys` and `num_internal_keys` are -1 when Spark did not count; Spark 3.5 has no column family fields.
    """

    members: Mapping[str, bytes]
    sst_files: tuple[SstFile, ...]
    num_keys: int
    num_internal_keys: int
    column_families: Mapping[str, int]

    @property
    def total_keys(self) -> int | None:
        """Number of keys that a full scan must find; `None` when Spark did not count them."""
        return None if self.num_keys < 0 else self.num_keys + max(self.num_internal_keys, 0)


def parse_state_file_name(name: str) -> StateFile | None:
    """Parse a file name; return `None` for checksums, temporary files, directories and anything else."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return StateFile(int(match[1]), match[2], cast("FileKind", match[3]), name)


def parse_state_files(names: Iterable[str]) -> list[StateFile]:
    return sorted(
        (file for name in names if (file := parse_state_file_name(name)) is not None),
        key=lambda file: (file.version, file.name),
    )


def choose_snapshot(
    files: Iterable[StateFile],
    *,
    at_most_version: int,
    wanted_unique_ids: Mapping[int, str] | None = None,
    mtimes_ns: Mapping[str, int] | None = None,
) -> tuple[StateFile | None, dict[StateFile, LeftOutReason]]:
    """Choose the newest usable snapshot not above `at_most_version`; return it, and why each other one was left out.

    Without any the store starts empty, at version 0.

    `wanted_unique_ids`: the committed attempt per version (format v2), `None` in format v1. `mtimes_ns`: by file name,
    for the stale-snapshot rule; without the times of both files that rule is not applied.
    """
    left_out: dict[StateFile, LeftOutReason] = {}
    chosen: StateFile | None = None
    # From the newest on: the first without a reason against it is chosen.
    known = sorted(set(files), key=lambda file: (file.version, file.name), reverse=True)
    for file in known:
        if not file.is_snapshot:
            continue
        reason = _reason_against(file, at_most_version, wanted_unique_ids, mtimes_ns or {})
        if reason is None and chosen is None:
            chosen = file
        else:
            left_out[file] = reason or "older"
    return chosen, left_out


def _reason_against(
    file: StateFile, at_most_version: int, wanted_unique_ids: Mapping[int, str] | None, mtimes_ns: Mapping[str, int]
) -> LeftOutReason | None:
    if file.version > at_most_version:
        return "above-last-commit"
    if wanted_unique_ids is not None and file.unique_id is not None:
        wanted = wanted_unique_ids.get(file.version)
        if wanted != file.unique_id:
            return "attempt-unknown" if wanted is None else "not-the-committed-attempt"
    # Format v2 committed an attempt with an id; this file is without one.
    elif wanted_unique_ids is not None and file.version in wanted_unique_ids:
        return "not-the-committed-attempt"
    changes = file.changes_beside
    if changes is not None:
        own, newest = mtimes_ns.get(file.name), mtimes_ns.get(changes)
        # Both times are the storage's, so one clock made them.
        if own is not None and newest is not None and own < newest:
            return "stale-snapshot"
    return None


def parse_snapshot_zip(
    data: bytes, *, name: str, merge_operator_version: int, max_bytes: int = DEFAULT_MAX_ZIP_BYTES
) -> SnapshotManifest:
    """Parse a RocksDB `.zip`; patch the merge operator's line in OPTIONS for other builds of RocksDB."""
    members = _members(data, name=name, max_bytes=max_bytes)
    if "metadata" not in members or "CURRENT" not in members:
        raise CorruptFileError("The zip lacks 'metadata' or 'CURRENT'", where=name)
    inside = f"{name}!metadata"
    body = parse_document(members.pop("metadata"), name=inside, tags=("v1",))
    families = checked(body.get("columnFamilyMapping") or {}, dict, "'columnFamilyMapping'", name=inside)
    for family, number in families.items():
        checked(number, int, f"{family!r} in columnFamilyMapping", name=inside)
    return SnapshotManifest(
        members=MappingProxyType(
            {
                member: patch_merge_operator(content, merge_operator_version)
                if member.startswith("OPTIONS")
                else content
                for member, content in members.items()
            }
        ),
        sst_files=tuple(_sst_file(item, name=inside) for item in field(body, "sstFiles", list, name=inside)),
        num_keys=field(body, "numKeys", int, name=inside),
        num_internal_keys=checked(body.get("numInternalKeys", 0), int, "'numInternalKeys'", name=inside),
        column_families=MappingProxyType(dict(families)),
    )


def patch_merge_operator(options: bytes, merge_operator_version: int) -> bytes:
    """Write the delimiter out: the bare name that Spark 4.2+ writes for an empty one means "," to every other RocksDB.

    A store without merge operator (Spark 3.5: `nullptr`) stays as it is.
    """
    return _MERGE_OPERATOR.sub(_COMMA_OPERATOR if merge_operator_version == 1 else _EMPTY_OPERATOR, options)


def _members(data: bytes, *, name: str, max_bytes: int) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries: Sequence[zipfile.ZipInfo] = archive.infolist()
            # By the directory, before anything is unpacked.
            if sum(entry.file_size for entry in entries) > max_bytes:
                raise CorruptFileError(f"The zip's content has more than the {max_bytes} bytes allowed", where=name)
            for entry in entries:
                if not _is_plain(entry.filename):
                    raise CorruptFileError(f"The zip holds {entry.filename!r}, not a plain file name", where=name)
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise CorruptFileError(
            f"This is not a complete zip file: {error}", where=f"{name}, {len(data)} bytes"
        ) from error


def _sst_file(item: object, *, name: str) -> SstFile:
    body = checked(item, dict, "an entry of sstFiles", name=name)
    found = SstFile(
        local_name=field(body, "localFileName", str, name=name),
        dfs_name=field(body, "dfsSstFileName", str, name=name),
        size_bytes=field(body, "sizeBytes", int, name=name),
    )
    if not _is_plain(found.local_name) or not _is_plain(found.dfs_name):
        raise CorruptFileError(f"{found.local_name!r} or {found.dfs_name!r} is not a plain file name", where=name)
    return found


def _is_plain(name: str) -> bool:
    return bool(name) and "/" not in name and "\\" not in name and name not in {".", ".."}


def committed_unique_ids(
    commits: Iterable[Commit], *, operator_id: int, partition: int, store_index: int
) -> dict[int, str] | None:
    """Return the committed attempt per version; `None` when no commit has unique ids (format v1)."""
    found: dict[int, str] | None = None
    for commit in commits:
        if commit.unique_ids is None:
            continue
        found = {} if found is None else found
        partitions = commit.unique_ids.get(operator_id, ())
        if partition < len(partitions) and store_index < len(partitions[partition]):
            found[commit.batch_id + 1] = partitions[partition][store_index]
    return found


def extend_by_lineage(known: Mapping[int, str], lineage: Sequence[LineageItem], *, name: str) -> dict[int, str]:
    """Add the versions that the lineage of a *committed* changelog names; a contradiction is corruption."""
    extended = dict(known)
    for item in lineage:
        if extended.setdefault(item.version, item.unique_id) != item.unique_id:
            raise CorruptFileError(
                f"The lineage names {item.unique_id} as version {item.version}, the commits {extended[item.version]}",
                where=name,
                fix="The file belongs to an uncommitted attempt, or the checkpoint was rewound: restore again",
            )
    return extended


def why_not_next(version: int, lineage: Sequence[LineageItem] | None, applied: Mapping[int, str]) -> str | None:
    """Return why the changelog of `version` does not continue what was applied; `None` when it does.

    `applied` holds the unique ids of the base snapshot and of every version applied after it. A changelog's lineage
    always reaches up to the version before it: that version must be named, and no named version may differ.
    """
    if lineage is None:
        return f"the changelog of version {version} has no lineage" if applied else None
    named = {item.version: item.unique_id for item in lineage}
    previous = version - 1
    if previous in applied and previous not in named:
        return f"the lineage of version {version} does not name version {previous}"
    for known_version, unique_id in sorted(applied.items()):
        if named.get(known_version, unique_id) != unique_id:
            other = named[known_version]
            return f"version {version} builds on {other} as version {known_version}, but {unique_id} was applied"
    return None
