"""The names of stores: the alias file's, and the announcement of the pipeline where the file has no name.

Rule: an announcement never breaks serving. Parts that do not fit the checkpoint are left out, with the reason. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.stores.parts import parts_of
from understudy_node.stores.results import ResultAlias
from understudy_node.stores.stores import AliasError, StoreAlias, served_stores
from understudy_shared.base.words import RESULT_FUNCTIONS, ResultFunction
from understudy_shared.bus.announcement import AnnouncedStore, Announcement, ResultColumn


@dataclass(frozen=True, slots=True)
class Naming:
    """Aliases by default store name; the stores that the announcement names; why parts of it are left out."""

    aliases: Mapping[str, StoreAlias]
    announced: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def naming_of(
    description: CheckpointDescription, file: Mapping[str, StoreAlias], announcement: Announcement | None
) -> Naming:
    """Return the names for a checkpoint. An announcement of another query is ignored.

    Raises AliasError when the alias file itself does not fit.
    """
    served_stores(description, file)
    if announcement is None or announcement.query_id != description.query_id:
        return Naming(dict(file))
    aliases = dict(file)
    fitting: list[str] = []
    left_out: list[str] = []
    for announced in announcement.stores:
        try:
            said = _aliases(description, announced)
            merged = {**aliases, **{name: _merged(file.get(name, StoreAlias()), each) for name, each in said.items()}}
            served_stores(description, merged)
        except Exception as error:  # Stores are served without names that are wrong in any way.
            left_out.append(f"names for operator {announced.operator_id}: {error}")
        else:
            aliases = merged
            fitting += said
            left_out += [
                f"result {column.name} for operator {announced.operator_id}: this release has no {column.function}"
                for column in announced.result
                if not _is_known(column)
            ]
    return Naming(aliases, fitting, left_out)


def _aliases(description: CheckpointDescription, announced: AnnouncedStore) -> dict[str, StoreAlias]:
    """Return an operator's announced names, by default store name: sides of a join, or state variables, share them."""
    parts = {
        operator.operator_id: [part.default_name for part in parts_of(operator)]
        for operator in description.operators
        if len(operator.served) == len(operator.stores)
    }
    names = parts.get(announced.operator_id)
    if not names:
        known = [str(operator_id) for operator_id, found in parts.items() if found]
        raise AliasError(
            f"the query has no operator {announced.operator_id} that is served as a whole",
            fix=f"Operators that are: {', '.join(known) or 'none'}",
        )
    said = _alias(announced)
    if len(names) == 1:
        return {names[0]: said}
    if announced.value is not None or announced.result:
        raise AliasError("its stores have columns of their own", fix="Announce its name and its key")
    return {name: StoreAlias(name=_side_name(said.name, name), key=said.key) for name in names}


def _side_name(name: str | None, default: str) -> str | None:
    """Return `pairs.left` for a join that is called `pairs`."""
    return None if name is None else f"{name}.{default.rpartition('.')[2]}"


def _alias(announced: AnnouncedStore) -> StoreAlias:
    known = [column for column in announced.result if _is_known(column)]
    results = {
        column.name: ResultAlias(
            function=cast(ResultFunction, column.function), buffers=tuple(column.buffers), type=column.type
        )
        for column in known
    }
    if len(results) != len(known):
        raise AliasError("two result columns have one name", fix="Give each column a name of its own")
    return StoreAlias(
        name=announced.name,
        key=None if announced.key is None else tuple(announced.key),
        value=None if announced.value is None else tuple(announced.value),
        result=results or None,
    )


def _is_known(column: ResultColumn) -> bool:
    """Whether this release computes it: the pipeline may be of a later one."""
    return column.function in RESULT_FUNCTIONS


def _merged(file: StoreAlias, announced: StoreAlias) -> StoreAlias:
    """Take each part from the file, else from the announcement."""
    return StoreAlias(
        name=file.name if file.name is not None else announced.name,
        key=file.key if file.key is not None else announced.key,
        value=file.value if file.value is not None else announced.value,
        result=file.result if file.result is not None else announced.result,
    )
