"""A router's metadata of one key as a page of text (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.terminal.pages import Lines, Page, Sheet
from understudy.terminal.values import duration_text, host_text, number_text, quoted
from understudy_shared.base.printable import printable

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
