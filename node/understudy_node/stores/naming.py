"""The names that stores go by: the alias file's, and the announcement of the pipeline where the file says nothing.

Rule: an announcement never breaks serving. What of it does not fit the checkpoint is left out, with the reason. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_node.checkpoint.description import CheckpointDescription, OperatorDescription
from understudy_node.stores.results import ResultAlias
from understudy_node.stores.stores import AliasError, StoreAlias, served_stores
from understudy_shared.messages import AnnouncedStore, Announcement


@dataclass(frozen=True, slots=True)
class Naming:
    """Aliases by default store name; the stores that the announcement speaks of; why parts of it are left out."""

    aliases: Mapping[str, StoreAlias]
    announced: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def naming_of(
    description: CheckpointDescription, file: Mapping[str, StoreAlias], announcement: Announcement | None
) -> Naming:
    """The names for a checkpoint. An announcement of another query says nothing about it.

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
            default, said = _only_store(description, announced), _alias(announced)
            merged = {**aliases, default: _merged(file.get(default, StoreAlias()), said)}
            served_stores(description, merged)
        except Exception as error:  # whatever is wrong with names, the stores are served without them
            left_out.append(f"names for operator {announced.operator_id}: {error}")
        else:
            aliases = merged
            fitting.append(default)
    return Naming(aliases, fitting, left_out)


def _only_store(description: CheckpointDescription, announced: AnnouncedStore) -> str:
    for operator in description.operators:
        if operator.operator_id == announced.operator_id and _has_one_store(operator):
            return operator.default_name(operator.stores[0])
    known = [str(operator.operator_id) for operator in description.operators if _has_one_store(operator)]
    raise AliasError(
        f"the query has no operator {announced.operator_id} with one store that is served",
        fix=f"Operators with one store: {', '.join(known) or 'none'}",
    )


def _has_one_store(operator: OperatorDescription) -> bool:
    return len(operator.stores) == len(operator.served) == 1


def _alias(announced: AnnouncedStore) -> StoreAlias:
    results = {
        column.name: ResultAlias(function=column.function, buffers=tuple(column.buffers), type=column.type)
        for column in announced.result
    }
    if len(results) != len(announced.result):
        raise AliasError("two result columns have one name", fix="Give each column a name of its own")
    return StoreAlias(
        name=announced.name,
        key=None if announced.key is None else tuple(announced.key),
        value=None if announced.value is None else tuple(announced.value),
        result=results or None,
    )


def _merged(file: StoreAlias, announced: StoreAlias) -> StoreAlias:
    """Each part as the file says it, else as announced."""
    return StoreAlias(
        name=file.name if file.name is not None else announced.name,
        key=file.key if file.key is not None else announced.key,
        value=file.value if file.value is not None else announced.value,
        result=file.result if file.result is not None else announced.result,
    )
