"""The server's descriptions and lag report as rows of text (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from understudy.values import duration_text, quoted
from understudy_shared.printable import printable

STORE_COLUMNS = ("store", "operator", "key", "value", "partitions", "version")
LAG_COLUMNS = ("store", "part", "role", "state", "position", "lag", "time lag", "committed at", "marks")


def store_row(store: Mapping[str, Any]) -> tuple[str, ...]:
    """A store in the list of stores."""
    return (
        printable(store["store"]),
        printable(store["operator"]),
        _columns(store["key"]),
        _columns(store["value"]),
        str(store["partitions"]),
        str(store["end_offset_position"]),
    )


def store_fields(store: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """All of one store, as (section, name, text)."""
    keys = [(column["name"], f"{column['type']}, for example {quoted(column['example'])}") for column in store["key"]]
    values = [
        (column["name"], column["type"] + ("" if column["nullable"] else ", never null")) for column in store["value"]
    ]
    rows = [
        ("store", printable(store["store"]), ""),
        ("operator", f"{printable(store['operator'])} {store['operator_id']}", ""),
    ]
    for section, columns in (("key", keys), ("value", values)):
        named = columns or [("(no columns)", "")]
        rows += [
            (section if index == 0 else "", printable(name), printable(text))
            for index, (name, text) in enumerate(named)
        ]
    return [
        *rows,
        ("partitions", str(store["partitions"]), ""),
        ("version", str(store["end_offset_position"]), ""),
        ("application", printable(store["application_id"]), ""),
        ("lineage", printable(store["lineage"]), ""),
    ]


def not_served_lines(refused: Iterable[Mapping[str, Any]]) -> list[str]:
    """Operators of the query that cannot be asked, and why."""
    return [
        f"not served: op{operator['operator_id']} ({printable(operator['operator'])}): {printable(operator['reason'])}"
        for operator in refused
    ]


def lag_header(report: Mapping[str, Any]) -> list[str]:
    """What is known of the query and its end."""
    query = report["query"]
    end = (
        report["end_offset_position"] if report["end_confirmed"] else f"{report['end_offset_position']} (not confirmed)"
    )
    state = query["state"] + (", a batch is in progress" if query["batch_in_progress"] else "")
    committed = "no batch committed yet"
    if query["last_batch"] is not None:
        committed = f"last batch {query['last_batch']}"
        if query["last_commit_at"] is not None:
            committed += f" committed at {query['last_commit_at']}"
    lines = [f"{printable(report['application_id'])}: query {state}, end {end}, {committed}", ""]
    if report["restoring_layout"] is not None:
        lines.insert(1, f"the query now has {report['restoring_layout']} partitions: the new layout is being restored")
    return lines


def lag_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row per store partition."""
    return [
        _lag_row(printable(store["store"]), partition)
        for store in report["stores"]
        for partition in store["partitions"]
    ]


def lag_footer(report: Mapping[str, Any]) -> list[str]:
    """What went wrong with which partition, and what would make the checkpoint better to follow."""
    errors = [
        f"error: {printable(store['store'])} partition {partition['partition']}: {printable(partition['error'])}"
        for store in report["stores"]
        for partition in store["partitions"]
        if partition["error"]
    ]
    return errors + [f"hint: {printable(hint)}" for hint in report["hints"]]


def _lag_row(store: str, partition: Mapping[str, Any]) -> tuple[str, ...]:
    position, end = partition["current_offset_position"], partition["end_offset_position"]
    where = "-" if position is None else f"{position}/{'?' if end is None else end}"
    return (
        store,
        str(partition["partition"]),
        partition["role"],
        partition["state"],
        where,
        "unknown" if partition["offset_lag"] is None else str(partition["offset_lag"]),
        duration_text(partition["time_lag_ms"]),
        _second(partition["committed_at"]),
        ", ".join(partition["marks"]),
    )


def _second(moment: str | None) -> str:
    """A moment without its fraction, so that a row fits a terminal; --json has all of it."""
    return "-" if moment is None else f"{moment[:19]}Z"


def _columns(columns: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{printable(column['name'])} {column['type']}" for column in columns) or "(no columns)"
