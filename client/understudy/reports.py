"""The server's descriptions of stores as rows of text (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from understudy.values import quoted
from understudy_shared.printable import printable

STORE_COLUMNS = ("store", "operator", "key", "value", "partitions", "version")


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
    """Operators of the query, and stores of operators, that cannot be asked, and why."""
    return [
        f"not served: {printable(each.get('store') or 'op' + str(each['operator_id']))} "
        f"({printable(each['operator'])}): {printable(each['reason'])}"
        for each in refused
    ]


def _columns(columns: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{printable(column['name'])} {column['type']}" for column in columns) or "(no columns)"
