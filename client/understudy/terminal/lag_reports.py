"""Lag and health as pages of text: what a node holds, a router's whole cluster, the sums of a fleet (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.terminal.console import Lines, Page, Sheet
from understudy.terminal.reports import duration_text, number_text, position_text
from understudy_shared.base.texts import printable

NODE_LAG_COLUMNS = ("store", "part", "role", "state", "position", "lag", "time lag", "committed at", "marks")
ROUTER_LAG_COLUMNS = ("store", "part", "node", "role", "state", "position", "lag", "time lag", "report age")
NODES_COLUMNS = ("node", "host", "zone", "state", "heartbeat", "version", "active", "standby", "warm-up", "why")

OPTIONAL_COLUMNS = ("zone", "why")

STATES = ("RUNNING", "RESTORING", "CREATED", "CLOSED", "DEAD", "UNKNOWN")
_MEMBERS = {"lag": "offset_lag", "time_lag": "time_lag_ms", "age": "report_age_ms"}
SORTS = [sign + name for name in ("store", "node", *_MEMBERS) for sign in ("", "-")]

_ROLE_ORDER = {"active": 0, "standby": 1, "warmup": 2}


def health_line(report: Mapping[str, Any]) -> str:
    """Return the state of the whole: `all well`, or what is wrong, who is hurt, and what to do."""
    state, headline = str(report["state"]), printable(str(report["headline"]))
    return headline if state == "ok" else f"{state}: {headline}"


def lag_page(report: Mapping[str, Any]) -> Page:
    """Render either kind of report: only a router's has nodes."""
    return _router_page(report) if "nodes" in report else _node_page(report)


def _router_page(report: Mapping[str, Any]) -> Page:
    replicas = [
        _replica_row(store["store"], replica)
        for store in report["stores"]
        for replica in sorted(store["partitions"], key=_replica_order)
    ]
    health = [health_line(report["health"]), ""] if "headline" in report.get("health", {}) else []
    return (
        Lines([*health, *_router_header(report), ""], states=True),
        _needed(Sheet(NODES_COLUMNS, [_member_row(member) for member in report["nodes"]])),
        Lines([""]),
        Sheet(ROUTER_LAG_COLUMNS, replicas),
        Lines(["", *_errors(report)]),
    )


def _needed(sheet: Sheet) -> Sheet:
    """Remove columns that are empty in every row, so that a row fits a terminal."""
    kept = [
        index
        for index, column in enumerate(sheet.columns)
        if column not in OPTIONAL_COLUMNS or any(row[index] not in ("", "-") for row in sheet.rows)
    ]
    rows = [[row[index] for index in kept] for row in sheet.rows]
    return Sheet([sheet.columns[index] for index in kept], rows, sheet.title)


def _router_header(report: Mapping[str, Any]) -> list[str]:
    bus, assignment = report["bus"], report["assignment"]
    assigned = "no assignment yet"
    if assignment is not None:
        assigned = (
            f"assignment {assignment['epoch']} of term {assignment['term']} by {printable(assignment['written_by'])}"
        )
    why = f": {printable(bus['why'])}" if bus["why"] else ""
    return [f"{printable(report['application_id'])}: end {_end(report)}, {assigned}, bus {bus['state']}{why}"]


def _member_row(member: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a node's row. A silent node is shown as dead, whatever it reported last."""
    state = member["state"] if member["live"] else "dead"
    return (
        printable(member["node_id"]),
        printable(f"{member['host']}:{member['port']}"),
        printable(member["zone"] or "-"),
        state + (f", {member['health']}" if member["health"] in ("suspect", "quarantined") else ""),
        _age(member["heartbeat_age_ms"]),
        "-" if member["version"] is None else str(member["version"]),
        *(number_text(member[role]) for role in ("active", "standby", "warmup")),
        printable(member["reason"] or ""),
    )


def _replica_order(replica: Mapping[str, Any]) -> tuple[int, int, str]:
    return (replica["partition"], _ROLE_ORDER.get(replica["role"], len(_ROLE_ORDER)), replica["node_id"])


def _replica_row(store: str, replica: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        printable(store),
        str(replica["partition"]),
        printable(replica["node_id"]),
        replica["role"],
        replica["state"] or "unknown",
        position_text(replica["current_offset_position"], replica["end_offset_position"]),
        number_text(replica["offset_lag"]),
        duration_text(replica["time_lag_ms"]),
        _age(replica["report_age_ms"]),
    )


def _node_page(report: Mapping[str, Any]) -> Page:
    rows = [
        _partition_row(store["store"], partition) for store in report["stores"] for partition in store["partitions"]
    ]
    hints = [f"hint: {printable(hint)}" for hint in report["hints"]]
    return (
        Lines([*_node_header(report), ""]),
        Sheet(NODE_LAG_COLUMNS, rows),
        Lines(["", *_errors(report), *hints]),
    )


def _node_header(report: Mapping[str, Any]) -> list[str]:
    """Return the lines about the query and its end."""
    query = report["query"]
    state = query["state"] + (", a batch is in progress" if query["batch_in_progress"] else "")
    committed = "no batch committed yet"
    if query["last_batch"] is not None:
        committed = f"last batch {query['last_batch']}"
        if query["last_commit_at"] is not None:
            committed += f" committed at {query['last_commit_at']}"
    lines = [f"{printable(report['application_id'])}: query {state}, end {_end(report)}, {committed}"]
    if report["restoring_layout"] is not None:
        lines.append(f"the query now has {report['restoring_layout']} partitions: the new layout is being restored")
    return lines


def _partition_row(store: str, partition: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        printable(store),
        str(partition["partition"]),
        partition["role"],
        partition["state"],
        position_text(partition["current_offset_position"], partition["end_offset_position"]),
        number_text(partition["offset_lag"]),
        duration_text(partition["time_lag_ms"]),
        _second(partition["committed_at"]),
        ", ".join(partition["marks"]),
    )


def _end(report: Mapping[str, Any]) -> str:
    end = number_text(report["end_offset_position"])
    return end if report["end_confirmed"] else f"{end} (not confirmed)"


def _errors(report: Mapping[str, Any]) -> list[str]:
    return [
        f"error: {printable(store['store'])} partition {partition['partition']}"
        + (f" on {printable(partition['node_id'])}" if "node_id" in partition else "")
        + f": {printable(partition['error'])}"
        for store in report["stores"]
        for partition in store["partitions"]
        if partition["error"]
    ]


def _age(ms: float | None) -> str:
    """Print how long ago something arrived."""
    return "never" if ms is None else duration_text(round(ms))


def _second(moment: str | None) -> str:
    """Print a moment without its fraction, so that a row fits a terminal; --json has all of it."""
    return "-" if moment is None else f"{moment[:19]}Z"


def arranged(
    report: dict[str, Any], *, state: str | None = None, role: str | None = None, sort: str | None = None
) -> dict[str, Any]:
    """Filter and sort the replicas of a report as asked. A node by itself sends all."""
    stores = [
        {**store, "partitions": [each for each in store["partitions"] if _is_meant(each, state, role)]}
        for store in report["stores"]
    ]
    if sort is None:
        return {**report, "stores": stores}
    rows = [(store, replica) for store in stores for replica in store["partitions"]]
    by = sort.removeprefix("-")
    rows.sort(key=lambda row: _rank(row[0], row[1], by), reverse=sort.startswith("-"))
    return {**report, "stores": [{**store, "partitions": [replica]} for store, replica in rows]}


def _is_meant(replica: Mapping[str, Any], state: str | None, role: str | None) -> bool:
    return state in {None, replica["state"] or "UNKNOWN"} and role in {None, replica["role"]}


def _rank(store: Mapping[str, Any], replica: Mapping[str, Any], sort: str) -> tuple[Any, ...]:
    place = (store["store"], replica["partition"], replica.get("node_id", ""))
    if sort == "store":
        return place
    if sort == "node":
        return (replica.get("node_id", ""), *place)
    value = replica.get(_MEMBERS[sort])
    return (value is None, value or 0, *place)


HEALTH_COLUMNS = ("application", "health", "nodes", "what is wrong")
LAG_COLUMNS = ("application", "health", "end", "lag", "time lag", "unknown", "nodes", "replicas", "restoring", "dead")

_BAD_FIRST = ("hurt", "unknown", "attention", "ok")


def fleet_health_page(overview: Mapping[str, Any]) -> Page:
    """Render the health of each application."""
    rows = [
        (
            printable(each["application"]),
            each["health"]["state"],
            _nodes(each["counts"]),
            "" if each["health"]["state"] == "ok" else printable(each["health"]["headline"]),
        )
        for each in overview["applications"]
    ]
    return (Lines([_sum_line(overview["applications"]), ""]), Sheet(HEALTH_COLUMNS, rows))


def fleet_lag_page(overview: Mapping[str, Any]) -> Page:
    """Render the worst lag of each application, and its replicas as numbers."""
    rows = [
        (
            printable(each["application"]),
            each["health"]["state"],
            number_text(each["end"]["version"]) + ("" if each["end"]["confirmed"] else " (not confirmed)"),
            number_text(each["lag"]["worst_batches"]),
            duration_text(each["lag"]["worst_ms"]),
            number_text(each["lag"]["unknown"]),
            _nodes(each["counts"]),
            *(number_text(each["counts"][kind]) for kind in ("replicas", "restoring", "dead")),
        )
        for each in overview["applications"]
    ]
    return (Lines([_sum_line(overview["applications"]), ""]), Sheet(LAG_COLUMNS, rows))


def _nodes(counts: Mapping[str, Any]) -> str:
    """Return how many nodes of an application live, of how many."""
    return f"{counts['nodes_live']} of {counts['nodes_known']}"


def _sum_line(applications: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of applications by their health, and the sum of their replicas."""
    states = Counter(str(each["health"]["state"]) for each in applications)
    found = ", ".join(f"{states[state]} {state}" for state in _BAD_FIRST if states[state]) or "none is known yet"
    replicas = sum(each["counts"]["replicas"] for each in applications)
    return f"{len(applications)} applications: {found}; {replicas} replicas"
