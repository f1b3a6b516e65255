"""The server's answers as text for people: descriptions of stores, the metadata of a key, events and changes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy.client.events import WatchEvent
from understudy.terminal.console import FieldList, Lines, Page, Sheet
from understudy.terminal.values import (
    absence_note,
    answer_rows,
    batch_row,
    duration_text,
    host_text,
    number_text,
    quoted,
)
from understudy_shared.base.texts import printable

EVENT_HEADS = f"{'committed at':27}  {'version':>8}  {'event':9}  key  content"
"""The line above events."""

_LISTS = ("sessions", "rows", "values", "entries", "timers")


def event_line(event: WatchEvent[Any]) -> str:
    """Print an event in one line: when, which version, what, and of which key."""
    raw = event.raw
    found = next((quoted(raw[name]) for name in ("result", "value", *_LISTS) if name in raw), "")
    if event.kind == "coalesced":
        count = "unknown" if event.changes is None else str(event.changes)
        found = f"changes since version {event.first_version}: {count}"
    elif event.kind == "reset":
        found = printable(str(raw.get("detail", "")))
    key = quoted(raw["key"]) if "key" in raw else "-"
    when = printable(str(raw.get("committed_at") or "-"))
    version = "-" if event.version is None else str(event.version)
    return f"{when:27}  {version:>8}  {event.kind:9}  {key}  {found}".rstrip()


_REPLICA_COLUMNS = ("node", "role", "state", "version", "lag", "time lag")
ORDER_COLUMNS = ("#", *_REPLICA_COLUMNS, "why")
LEFT_OUT_COLUMNS = (*_REPLICA_COLUMNS, "reason")


def explain_page(report: Mapping[str, Any]) -> Page:
    """Render where the key is, whom a router would ask in which order, and the replicas left out, with reasons. A key
    of a scattered store is asked of each partition.
    """
    if "asked" not in report:
        return [Lines(_where(report)), *_asked(report)]
    parts: list[Lines | Sheet] = [Lines(_head(report, "any: the store is scattered, so each is asked"))]
    for each in report["asked"]:
        place = f"partition {each['partition']}, active {_active(each)}, standbys {_standbys(each)}"
        parts += [Lines(["", place]), *_asked(each)]
    return parts


def _asked(report: Mapping[str, Any]) -> list[Lines | Sheet]:
    order = [
        (str(place), *_replica(replica), _why(replica, "why")) for place, replica in enumerate(report["choice"], 1)
    ]
    left_out = [(*_replica(replica), _why(replica, "reason")) for replica in report["exclusions"]]
    parts: list[Lines | Sheet] = []
    if order:
        parts += [Lines(["", "asked in this order:"]), Sheet(ORDER_COLUMNS, order)]
    else:
        parts.append(Lines(["", "no replica may answer"]))
    if left_out:
        parts += [Lines(["", "left out:"]), Sheet(LEFT_OUT_COLUMNS, left_out)]
    return parts


def _active(report: Mapping[str, Any]) -> str:
    return "none" if report["active_host"] is None else _named(report["active_host"], _names(report))


def _standbys(report: Mapping[str, Any]) -> str:
    return ", ".join(_named(host, _names(report)) for host in report["standby_hosts"]) or "none"


def _names(report: Mapping[str, Any]) -> dict[str, str | None]:
    return {host_text(replica): replica["node_id"] for replica in [*report["choice"], *report["exclusions"]]}


def _where(report: Mapping[str, Any]) -> list[str]:
    place = [f"  active     {_active(report)}", f"  standbys   {_standbys(report)}"]
    return _head(report, f"{report['partition']} of {report['partitions']}", place)


def _head(report: Mapping[str, Any], partition: str, hosts: Sequence[str] = ()) -> list[str]:
    end = number_text(report["end_offset_position"]) + ("" if report["end_confirmed"] else " (not confirmed)")
    lines = [
        f"{printable(report['store'])} {quoted(report['key'])}",
        f"  partition  {partition}",
        *hosts,
        f"  end        {end}",
        f"  assignment {number_text(report['epoch'])} of term {number_text(report['term'])}",
    ]
    if report["bounds"]:
        bounds = ", ".join(f"{printable(str(name))} {quoted(bound)}" for name, bound in report["bounds"].items())
        lines.append(f"  bounds     {bounds}")
    return lines


def _named(host: Mapping[str, Any], names: Mapping[str, str | None]) -> str:
    """Return `node-1 (host:port)`; the host alone when no node is known there."""
    text = host_text(host)
    name = names.get(text)
    return f"{printable(name)} ({text})" if name else text


def _replica(replica: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        printable(replica["node_id"] or "-"),
        printable(replica["role"] or "-"),
        printable(replica["state"] or "unknown"),
        "-" if replica["version"] is None else str(replica["version"]),
        number_text(replica["offset_lag"]),
        duration_text(replica["time_lag_ms"]),
    )


def _why(replica: Mapping[str, Any], field: str) -> str:
    why = replica[field]
    return printable(why if isinstance(why, str) else ", ".join(map(str, why)))


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
