"""Finds the attempt whose file makes up each version of a store partition.

In format v2 the commit log names the winning attempt of every version it still holds; older ones are named by the
lineage inside a committed changelog. In format v1 there are no attempts: the name is the version. Rule: a file is part
of a version only if a commit, or the lineage of a committed file, names it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from understudy_node.checkpoint.changelog import LineageItem
from understudy_node.checkpoint.logs import Commit
from understudy_shared.base.errors import CorruptFileError

UniqueIdsByVersion = Mapping[int, str]


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


def extend_by_lineage(known: UniqueIdsByVersion, lineage: Sequence[LineageItem], *, name: str) -> dict[int, str]:
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


def why_not_next(version: int, lineage: Sequence[LineageItem] | None, applied: UniqueIdsByVersion) -> str | None:
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
