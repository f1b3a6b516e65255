"""The server's answers as text for people: stores, lookups, the metadata of a key, events and changes (pure).

Values are plain text where that is safe, JSON where it is not: what a value holds never reaches the terminal as a
control sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from understudy.client.results import WatchEvent
from understudy.terminal.console import FieldList, Lines, Page, Sheet
from understudy_shared.base.texts import duration_text as known_duration_text
from understudy_shared.base.texts import printable

_LISTS = ("sessions", "rows", "values", "entries", "timers")
"""Members of an answer that hold all elements of a key."""

_MOMENTS = {"expires_at": "expires", "expired": "expired", "timeout_at": "times out"}
"""Members of an answer other than the stored columns, and their names for people."""


def shown(value: object) -> str:
    """Print a value in one line; quote unprintable texts, and those that look like another type."""
    if isinstance(value, str):
        return value if value.isprintable() and value.strip() == value != "" else quoted(value)
    return quoted(value)


def quoted(value: object) -> str:
    """Print compact JSON, unprintable characters escaped."""
    return printable(orjson.dumps(value).decode())


def count_text(number: int | None, unit: str) -> str:
    """Print `3 versions`; an unknown number is `unknown`, never 0."""
    return "unknown" if number is None else f"{number} {unit}"


def duration_text(ms: int | None) -> str:
    """Print milliseconds in a unit that fits; an unknown number is `unknown`."""
    return "unknown" if ms is None else known_duration_text(ms)


def number_text(number: int | None) -> str:
    """Print a count in a column of counts; an unknown number is `unknown`, never 0."""
    return "unknown" if number is None else str(number)


def position_text(position: int | None, end: int | None) -> str:
    """Print `418/420`: where a replica is and where the query is."""
    return "-" if position is None else f"{position}/{'?' if end is None else end}"


def host_text(host: Mapping[str, Any]) -> str:
    return printable(f"{host['host']}:{host['port']}")


def answer_rows(answer: Mapping[str, Any], *, raw: bool) -> list[tuple[str, str, str]]:
    """Return an answer as (section, field, text); only the first row of a section has its name.

    The result comes first. The value that Spark stores is shown when there is no result, or when `raw` asks for it.
    """
    lag, by = answer["lag"], answer["served_by"]
    end = lag["end_offset_position"]
    age = (
        f"{answer['version']} of {'unknown' if end is None else end}, "
        f"{count_text(lag['offset_lag'], 'versions')} behind, time lag {duration_text(lag['time_lag_ms'])}"
    )
    rows = [*_section("key", answer["key"])]
    rows += _found_rows(answer, raw=raw) if answer["found"] else [("value", "absent", ""), *_moment_rows(answer)]
    rows += [
        ("version", age, ""),
        ("committed", shown(answer["committed_at"]), ""),
        ("watermark", shown(answer["watermark"]), ""),
        ("served by", f"{by['host']}:{by['port']}, {by['role']}, {by['state']}, {_partition(answer)}", ""),
    ]
    if answer.get("marks"):
        rows.append(("marks", ", ".join(map(printable, answer["marks"])), ""))
    return [*rows, ("position", shown(answer["position"]), "")]


def _partition(answer: Mapping[str, Any]) -> str:
    return "all partitions asked" if answer["partition"] is None else f"partition {answer['partition']}"


def batch_row(answer: Mapping[str, Any], *, raw: bool) -> tuple[str, ...]:
    """Return one item of a batch as (key, outcome, result, age), with the stored value before the age when `raw` asks
    for it.

    `key` is empty for a problem, which does not repeat it.
    """
    if "found" not in answer:
        cells = ("", printable(str(answer.get("type"))), printable(str(answer.get("detail"))))
        return (*cells, "", "") if raw else (*cells, "")
    lag = answer["lag"]["offset_lag"]
    age = f"version {answer['version']}, {count_text(lag, 'behind')}"
    is_found = answer["found"]
    shown_first = _found_cell(answer) if is_found else ""
    stored = (quoted(answer["value"]) if "value" in answer else "",) if raw else ()
    return quoted(answer["key"]), "found" if is_found else "absent", shown_first, *stored, age


def _found_rows(answer: Mapping[str, Any], *, raw: bool) -> list[tuple[str, str, str]]:
    """Return the found members, by the kind of the store."""
    rows = []
    if "result" in answer:
        rows += _section("result", answer["result"])
    if "value" in answer and (raw or "result" not in answer):
        rows += _section("value", answer["value"])
    for member in _LISTS:
        rows += [
            (member if index == 0 else "", str(index + 1), quoted(each))
            for index, each in enumerate(answer.get(member, ()))
        ]
    if answer.get("next_cursor") is not None:
        rows.append(("more", f"--cursor {shown(answer['next_cursor'])}", ""))
    return [*rows, *_moment_rows(answer)]


def _moment_rows(answer: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(name, shown(answer[member]), "") for member, name in _MOMENTS.items() if member in answer]


def _found_cell(answer: Mapping[str, Any]) -> str:
    """Return them in one cell of a table."""
    more = "" if answer.get("next_cursor") is None else f" and more: --cursor {shown(answer['next_cursor'])}"
    for member in ("result", "value", *_LISTS):
        if member in answer:
            return quoted(answer[member]) + more
    moments = {name: answer[member] for member, name in _MOMENTS.items() if member in answer}
    return quoted(moments) if moments else ""


def absence_note(answer: Mapping[str, Any]) -> str:
    """Say why a window's key is absent, if that follows from the watermark; else nothing.

    Spark removes a window's state in the batch where the watermark reaches the window's end.
    """
    if answer.get("found") is not False or answer["watermark"] is None:
        return ""
    ends = [end for value in answer["key"].values() if (end := _window_end(value)) is not None]
    watermark = _moment(answer["watermark"])
    if not ends or watermark is None or min(ends) > watermark:
        return ""
    return (
        f"The watermark ({answer['watermark']}) has passed the end of this window: "
        "Spark has dropped its state (in append and update mode)."
    )


def _window_end(value: object) -> datetime | None:
    return _moment(value["end"]) if isinstance(value, dict) and list(value) == ["start", "end"] else None


def _moment(text: object) -> datetime | None:
    """Parse a timestamp of an answer; None for other texts. `timestamp_ntz` is compared as UTC, as Spark does."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _section(name: str, fields: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    if not fields:
        return [(name, "(no columns)", "")]
    return [(name if index == 0 else "", printable(field), shown(fields[field])) for index, field in enumerate(fields)]


EVENT_HEADS = f"{'committed at':27}  {'version':>8}  {'event':9}  key  content"
"""The line above events."""


def event_line(event: WatchEvent[Any]) -> str:
    """Print an event in one line: time, version, kind and key."""
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
    """Render where the key is, whom a router would ask in which order, and the replicas left out, with reasons. For a
    scattered store each partition is asked.
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
    """Render the list of stores, and the parts of the query that cannot be asked; for a fleet with the application of
    each.
    """
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
    """List stored columns without a result: the announcement or the aliases could not name them."""
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
