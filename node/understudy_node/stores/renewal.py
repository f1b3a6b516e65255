"""The changes that a running node takes over when the query was started again with other state (pure).

Replicas stay as they are. So does an operator whose replicas would have to be others: it is read as before, until the
node is started again.
"""

from __future__ import annotations

from dataclasses import replace

from understudy_node.checkpoint.description import CheckpointDescription, OperatorDescription
from understudy_node.stores.parts import scan_order_of


def with_new_schemas(
    known: CheckpointDescription, found: CheckpointDescription
) -> tuple[CheckpointDescription, list[str]]:
    """Return the description to serve from now on, and which parts of `found` are not in it, with the reasons."""
    before = {each.operator_id: each for each in known.operators}
    operators, left = [], []
    for operator in found.operators:
        was = before.get(operator.operator_id, operator)
        why = _why_others(was, operator)
        operators.append(operator if why is None else was)
        if why is not None:
            left.append(f"operator {operator.operator_id} is read as before: {why}. Start the node again")
    return replace(found, operators=tuple(operators)), left


def read_alike(one: CheckpointDescription, other: CheckpointDescription) -> bool:
    """Whether both have the same operators, schemas and variables."""
    return [_read_by(each) for each in one.operators] == [_read_by(each) for each in other.operators]


def _why_others(was: OperatorDescription, now: OperatorDescription) -> str | None:
    """Return why the replicas of an operator cannot stay."""
    if _stores(was) != _stores(now) or was.partitions != now.partitions:
        reasons = [str(reason) for _, reason in now.refusals]
        return f"it has other stores ({'; '.join(reasons)})" if reasons else "it has other stores"
    orders = [[scan_order_of(each, store, "rocksdb") for store in each.served] for each in (was, now)]
    return None if orders[0] == orders[1] else "it has a map or timers for the first time, or no more"


def _stores(operator: OperatorDescription) -> list[tuple[str, int]]:
    return [(store.name, store.index) for store in operator.served]


def _read_by(operator: OperatorDescription) -> object:
    files = [[file.name for file in store.schema_files] for store in operator.stores]
    variables = [(each.name, each.kind, each.has_ttl) for each in operator.variables]
    return operator.operator_id, operator.operator_name, bool(operator.inferred_from), files, variables
