"""The server's answers and its descriptions of stores as pages (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy.terminal.pages import FieldList, Lines, Page, Sheet
from understudy.terminal.values import absence_note, answer_rows, batch_row, quoted
from understudy_shared.base.printable import printable

STORE_COLUMNS = ("store", "operator", "key", "result", "partitions", "version")

NO_RESULT = "not known: what Spark stores is shown"


def answer_page(answer: Mapping[str, Any], *, raw: bool) -> Page:
    """Render one lookup, found or absent. `raw` adds what Spark stores to a result that was computed from it."""
    note = absence_note(answer)
    return (
        Lines([f"{printable(answer['store'])}: {'found' if answer['found'] else 'absent'}"]),
        FieldList(answer_rows(answer, raw=raw)),
        Lines([note] if note else []),
    )


def batch_page(keys: Sequence[str], answers: Sequence[Mapping[str, Any]], *, raw: bool) -> Page:
    """Render a table of a batch's outcomes, in the order of `keys`; each key whose window has closed is noted below."""
    shows_value = raw and any("result" in answer for answer in answers)
    rows, notes = [], []
    for asked, answer in zip(keys, answers, strict=True):
        row = batch_row(answer, raw=shows_value)
        rows.append((row[0] or printable(asked), *row[1:]))
        if note := absence_note(answer):
            notes.append(f"{row[0]}: {note}")
    has_result = any("result" in answer for answer in answers)
    columns = ("result" if has_result else "value", *(["value"] if shows_value else []))
    return (Sheet(("key", "outcome", *columns, "age"), rows), Lines(notes))


def stores_page(document: Mapping[str, Any]) -> Page:
    """Render the list of stores, and what of the query cannot be asked; of a fleet with the application of each."""
    stores = document["stores"]
    unknown = document.get("unknown", ())
    is_of_fleet = bool(unknown) or any("application" in store for store in stores)
    rows = [
        (*([printable(str(store.get("application", "")))] if is_of_fleet else []), *store_row(store))
        for store in stores
    ]
    table = [Sheet((*(["application"] if is_of_fleet else []), *STORE_COLUMNS), rows)] if rows or not unknown else []
    return (
        *table,
        Lines([*waiting_lines(unknown), *unnamed_lines(stores), *not_served_lines(document["not_served"])]),
    )


def waiting_lines(unknown: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each application of a fleet that gave no list of its stores, with the reason."""
    lines = []
    for each in unknown:
        name, reason = printable(str(each["application"])), printable(str(each["reason"] or "it gave no reason"))
        is_sentence = reason.startswith(f"application {name} ")
        lines.append(reason if is_sentence else f"application {name} is waiting: {reason}")
    return lines


def store_row(store: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a store's row in the list of stores: its results, or what Spark stores where the results are not known."""
    results = store.get("result", ())
    return (
        printable(store["store"]),
        printable(store["operator"]),
        _columns(store["key"]),
        _columns(results or store["value"]),
        str(store["partitions"]),
        str(store["end_offset_position"]),
    )


def store_fields(store: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return all of one store, as (section, name, text): results first, then what Spark stores."""
    results = [(column["name"], column["type"]) for column in store.get("result", ())] or [(NO_RESULT, "")]
    keys, user_keys = (
        [(column["name"], f"{column['type']}, for example {quoted(column['example'])}") for column in columns]
        for columns in (store["key"], store.get("user_key", ()))
    )
    values = [
        (column["name"], column["type"] + ("" if column["nullable"] else ", never null")) for column in store["value"]
    ]
    rows = [
        ("store", printable(store["store"]), ""),
        ("operator", f"{printable(store['operator'])} {store['operator_id']}", ""),
    ]
    of_a_map = [("user key", user_keys)] if user_keys else []
    for section, columns in (("key", keys), *of_a_map, ("result", results), ("value", values)):
        named = columns or [("(no columns)", "")]
        rows += [
            (section if index == 0 else "", printable(name), printable(text))
            for index, (name, text) in enumerate(named)
        ]
    return [
        *rows,
        *_unused_rows(store),
        *_schema_rows(store),
        ("partitions", str(store["partitions"]), ""),
        ("version", str(store["end_offset_position"]), ""),
        ("application", printable(store["application_id"]), ""),
        ("lineage", printable(store["lineage"]), ""),
    ]


def not_served_lines(refused: Iterable[Mapping[str, Any]]) -> list[str]:
    """List operators of the query, and stores of operators, that cannot be asked, and why."""
    return [
        f"not served: {printable(each.get('store') or 'op' + str(each['operator_id']))} "
        f"({printable(each['operator'])}): {printable(each['reason'])}"
        for each in refused
    ]


def unnamed_lines(stores: Iterable[Mapping[str, Any]]) -> list[str]:
    """List stores with columns that are in no result, and these columns."""
    return [
        f"no result: {printable(store['store'])}: {', '.join(map(printable, store['unnamed']))}"
        for store in stores
        if store.get("unnamed")
    ]


def _unused_rows(store: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """List stored columns that no result is computed from: what the announcement or the aliases could not name."""
    unused = store.get("unnamed", ())
    return [("no result", ", ".join(map(printable, unused)), "")] if unused else []


def _schema_rows(store: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """List the value columns of each schema, where there were several."""
    schemas = store.get("schemas", ())
    if len(schemas) < 2:
        return []
    since = ["" if each["from_batch"] is None else f" from batch {each['from_batch']}" for each in schemas]
    return [
        ("" if at else "schemas", printable(f"{each['schema_id']}{batch}"), _columns(each["value"]))
        for at, (each, batch) in enumerate(zip(schemas, since, strict=True))
    ]


def _columns(columns: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{printable(column['name'])} {printable(column['type'])}" for column in columns) or "(no columns)"
