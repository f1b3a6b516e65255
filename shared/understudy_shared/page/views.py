"""The texts of the page, and of the page of many applications: each function takes the overview document or a part of
it, and returns the text for each slot of a template (pure).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from understudy_shared.base.texts import named
from understudy_shared.page.replicas import LAGGING_FROM
from understudy_shared.page.words import (
    UNKNOWN,
    age,
    batches,
    count,
    duration,
    fixed,
    number,
    percent,
    rate,
    size,
)

Document = Mapping[str, Any]

MARKS = {"ok": "●", "attention": "▲", "hurt": "✕", "moving": "↻", "unknown": "?"}
"""The shape of each state, for viewers who do not see its colour."""

REDIS = "Redis"
"""The name of the bus for people."""

NOTHING = "-"
"""The text for an absent value; the text for an unknown one is UNKNOWN."""

_RUNBOOK = re.compile(r"docs/runbooks/([\w-]+)\.md", re.ASCII)

TRENDS = {"steady": "→ steady", "growing": "↑ growing", "shrinking": "↓ shrinking", "unknown": UNKNOWN}


class Shown(NamedTuple):
    """The content of a slot: a text, the state that colours it, the text shown on hover, and its link."""

    text: str
    state: str = ""
    title: str = ""
    href: str = ""


Slots = dict[str, Shown]


def health_slots(overview: Document) -> Slots:
    """Fill the health line."""
    health, counts = overview["health"], overview["counts"]
    state = health["state"]
    return {
        "mark": Shown(MARKS.get(state, UNKNOWN), state, state),
        "headline": Shown(health["headline"], state),
        "summary": Shown(summary(counts), "", "what is known here"),
        "runbook": runbook_link(health["runbook"], "Runbook: "),
    }


def summary(counts: Mapping[str, int]) -> str:
    """Return the counts in words, without absent ones. A node counts no nodes."""
    words = [count(counts["replicas"], "replica")]
    if "nodes_live" in counts:
        words.insert(0, f"{number(counts['nodes_live'])} of {count(counts['nodes_known'], 'node')} live")
    words += [f"{number(counts[kind])} {kind}" for kind in ("running", "restoring", "dead", "unknown") if counts[kind]]
    return " · ".join(words)


def unwell(overview: Document) -> list[Document]:
    """Return the unhealthy indicators, the worst first."""
    order = {"hurt": 0, "unknown": 1, "attention": 2}
    found = [each for each in overview["health"]["indicators"] if each["state"] != "ok"]
    return sorted(found, key=lambda each: order.get(each["state"], 3))


def indicator_slots(indicator: Document, health: Document) -> Slots:
    """Fill the row of one unhealthy indicator, without repeating the headline."""
    is_headline = health["headline"] == f"{indicator['symptom']}. Do: {indicator['action']}"
    affected = [str(each) for each in indicator["affected"]]
    return {
        "mark": Shown(MARKS.get(indicator["state"], UNKNOWN), indicator["state"], indicator["state"]),
        "name": Shown(REDIS if indicator["name"] == "bus" else indicator["name"]),
        "symptom": Shown("" if is_headline else indicator["symptom"]),
        "impact": Shown(indicator["impact"]),
        "cause": Shown(indicator["cause"]),
        "action": Shown("" if is_headline else indicator["action"]),
        "runbook": Shown("") if is_headline else runbook_link(indicator["runbook"]),
        "affected": Shown(named(affected, 12)),
    }


def runbook_link(path: str | None, before: str = "") -> Shown:
    """Link to the page of a runbook, below this page. `path` is the runbook's path in the repository."""
    found = _RUNBOOK.fullmatch(path or "")
    return Shown(path or "") if found is None else Shown(before + found[1], "", "", f"runbooks/{found[1]}")


def figure_slots(overview: Document) -> Slots:
    """Fill the row of figures below the health line. A node does not have all of them."""
    fresh, reads, lag, end = overview["freshness"], overview["reads"], overview["lag"], overview["end"]
    counts, bus = overview["counts"], overview["bus"]
    node = f" on {lag['node_id']}" if is_of_a_cluster(overview) else ""
    place = f" · {lag['store']} {lag['partition']}{node}" if lag["store"] is not None else ""
    unknown = f" · {count(lag['unknown'], 'replica')} unknown" if lag["unknown"] else ""
    confirmed = "confirmed" if end["confirmed"] else "not confirmed"
    since = "" if end["age_ms"] is None else f" {age(end['age_ms'])} ago"
    found = {
        "freshness": Shown(duration(fresh["p50_ms"]), "", "from the commit to the first answer that has it, median"),
        "freshness_more": Shown(f"p99 {duration(fresh['p99_ms'])}"),
        "reads": Shown(f"{rate(reads['per_s'])}/s", "", "lookups answered here"),
        "reads_more": Shown(f"{rate(reads['errors_per_s'])} errors/s", "attention" if reads["errors_per_s"] else ""),
        "lag": Shown(batches(lag["worst_batches"]), "unknown" if lag["worst_batches"] is None else ""),
        "lag_more": Shown(f"{duration(lag['worst_ms'])}{place}{unknown}"),
        "end": Shown(number(end["version"]), "" if end["confirmed"] else "unknown"),
        "end_more": Shown(f"{confirmed}{since}"),
    }
    if not is_of_a_cluster(overview):
        return found
    is_all_live = counts["nodes_live"] == counts["nodes_known"]
    return found | {
        "bound": Shown(percent(reads["within_bound_percent"]), "", "answers inside the bound that was asked for"),
        "bound_more": Shown("of answers"),
        "nodes": Shown(f"{counts['nodes_live']} of {counts['nodes_known']}", "" if is_all_live else "attention"),
        "nodes_more": Shown("live"),
        "bus": Shown(bus["state"], "" if bus["state"] == "connected" else "attention", bus["why"]),
        "bus_more": Shown("Redis or Valkey"),
    }


def is_of_a_cluster(overview: Document) -> bool:
    """Whether the overview is a router's. That of a node shows only its own replicas."""
    return overview["nodes"] is not None


def store_slots(store: Document) -> Slots:
    """Fill a row of the stores. A node knows no trend and no other roles."""
    kinds = (("unserved", "unserved", "hurt"), ("restoring", "restoring", "moving"), ("unknown", "unknown", "unknown"))
    state = next((state for name, _, state in kinds if store[name]), "")
    words = [f"{number(store[name])} {word}" for name, word, _ in kinds if store[name]]
    is_lagging = (store["worst_lag"] or 0) >= LAGGING_FROM and store["trend"] in {None, "growing"}
    found = {
        "name": Shown(store["store"]),
        "partitions": Shown(number(store["partitions"])),
        "active": Shown(number(store["active"]), "hurt" if store["active"] < store["partitions"] else ""),
        "lag": Shown(
            number(store["worst_lag"]),
            "unknown" if store["worst_lag"] is None else "attention" if is_lagging else "",
            f"{batches(store['worst_lag'])}, {age(store['worst_lag_ms'])}",
        ),
        "lag_ms": Shown(age(store["worst_lag_ms"])),
        "wellness": Shown(" · ".join(words) or "all served", state),
    }
    if store["trend"] is None:
        return found
    eta = "" if store["eta_s"] is None else f", ETA {duration(store['eta_s'] * 1000)}"
    bound, p99 = store["within_bound_percent"], store["staleness_p99_ms"]
    served = "" if p99 is None else f"p99 {'>' if store['staleness_is_more'] else '≤'} {duration(p99)}"
    return found | {
        "standby": Shown(number(store["standby"])),
        "warmup": Shown(number(store["warmup"])),
        "bound": Shown(NOTHING if bound is None else percent(bound), "", "reads answered within their bound lately"),
        "served": Shown(served, "", "how old its answers were"),
        "trend": Shown(f"{TRENDS.get(store['trend'], UNKNOWN)}{eta}", "attention" if is_lagging else ""),
    }


def node_slots(node: Document) -> Slots:
    """Fill a row of the nodes."""
    health = node["health"]
    is_well = node["live"] and health in {None, "ok"} and not node["degraded"]
    words = [node["state"]]
    words += [health] if health not in {None, "ok"} else []
    waits_for = node.get("waits_for")
    waits = [f"waits for {waits_for}"] if waits_for else []
    why = "; ".join([*waits, *([node["reason"]] if node["reason"] else []), *node["degraded"]])
    state = "" if is_well and node["state"] == "serving" else "attention" if node["live"] else "hurt"
    moving = "moving" if state == "attention" else state
    states = {"draining": moving, "waiting": moving, "unheard": "unknown"}
    roles = f"{number(node['active'])} A  {number(node['standby'])} S"
    roles += f"  {number(node['warmup'])} W" if node["warmup"] else ""
    return {
        "name": Shown(node["node_id"]),
        "address": Shown(f"{node['host']}:{node['port']}"),
        "zone": Shown(node["zone"] or "-"),
        "state": Shown(", ".join(words), states.get(node["state"], state)),
        "why": Shown(why),
        "heartbeat": Shown(age(node["heartbeat_age_ms"]), "", "since it was heard"),
        "version": Shown(number(node["version"])),
        "roles": Shown(roles, "", "active, standby and warm-up replicas"),
        "restoring": Shown(f"{number(node['restoring'])} restoring" if node["restoring"] else "", "moving"),
        "safe": _safety(node["safe_to_stop"]["safe"]) if node["live"] else Shown("-"),
        "safe_why": Shown(node["safe_to_stop"]["why"] if node["live"] else ""),
    }


def _safety(safe: bool | None) -> Shown:
    """Say whether a live node may be stopped. "Safe" has no colour."""
    if safe is None:
        return Shown("? unknown", "unknown")
    return Shown("✓ safe") if safe else Shown("✕ not safe", "attention")


def restore_slots(restore: Document) -> Slots:
    """Fill the row of a restore: its stage, bytes, rate, and the remaining time at that rate."""
    done, total, per_s = restore["done_bytes"], restore["total_bytes"], restore["bytes_per_s"]
    words = [f"{size(done)} of {size(total)}"]
    if per_s is not None:
        words.append(f"{size(per_s)}/s")
    is_known = done is not None and bool(total)
    if is_known and per_s:
        words.append(f"{duration(max(0, total - done) * 1000 / per_s)} left")
    return {
        "place": Shown(
            f"{' and '.join(restore['stores'])} {restore['task'].partition('_')[2]} on {restore['node_id']}"
        ),
        "stage": Shown(restore["stage"], "moving"),
        "share": Shown(f"{min(100, done * 100 // total)} %" if is_known else UNKNOWN),
        "bytes": Shown(" · ".join(words)),
    }


def disagreement_slots(row: Document) -> Slots:
    """Fill the row of a disagreement between this router and a node."""
    return {
        "node": Shown(row["node_id"]),
        "router_says": Shown(row["router_says"], "attention"),
        "node_says": Shown(row["node_says"]),
    }


def snapshot_slots(lease: Document) -> Slots:
    """Fill the row of a snapshot lease: its version, and the resources that it holds."""
    files = f" · {size(lease['disk_bytes'])} of files" if lease["disk_bytes"] else ""
    return {
        "version": Shown(number(lease["version"])),
        "bytes": Shown(f"{size(lease['extra_bytes'])}{files}", "", "what its version holds beyond the one on show"),
        "tasks": Shown(number(lease["tasks"]), "", "replicas that keep its version"),
    }


def event_slots(event: Document) -> Slots:
    """Fill a line of the log of events."""
    name = event["event"]
    shown = f"{REDIS} {name[4:].replace('-', ' ')}" if name.startswith("bus-") else name
    return {"event": Shown(shown), "detail": Shown(event["detail"])}


class Bar(NamedTuple):
    """A bar of the histogram of served staleness."""

    label: str
    answers: str
    share: str
    percent: int


def staleness_bars(reads: Document) -> list[Bar]:
    """Return the histogram of the ages of this service's answers; empty without answers."""
    bounds, counts = reads["staleness"].get("le_ms", []), reads["staleness"].get("counts", [])
    total = sum(counts)
    if not total:
        return []
    top = max(counts)  # a count above 0 is always high enough to be seen
    bars = [
        Bar(
            _bar_label(bounds, index),
            number(value),
            f"{fixed(value * 100 / total, 1)} %",
            max(2, value * 100 // top) if value else 0,
        )
        for index, value in enumerate(counts)
    ]
    first = next(index for index, value in enumerate(counts) if value)
    last = max(index for index, value in enumerate(counts) if value)
    return bars[max(0, first - 1) : last + 2]


def _bar_label(bounds: Sequence[float | None], index: int) -> str:
    bound = bounds[index] if index < len(bounds) else None
    if bound is not None:
        return f"≤ {duration(bound)}"
    return f"> {duration(bounds[index - 1])}" if index else "any"


Row = Mapping[str, Any]

FLEET_STATES = ("hurt", "unknown", "attention", "ok")
"""The choices of the filter besides all, the worst first."""

MAX_FILTER_CHARS = 256


class FleetQuery(NamedTuple):
    """The viewer's choices: a part of a name, and a state of health."""

    name: str = ""
    state: str = ""

    def lets_through(self, row: Row) -> bool:
        """Whether an application is shown: its state, and its name or the name of one of its stores, must match."""
        wanted = self.name.casefold()
        names = [row["application"], *row["stores"]]
        has_name = any(wanted in name.casefold() for name in names)
        return has_name and self.state in {"", row["health"]["state"]}


def read_fleet_query(parameters: Mapping[str, str]) -> FleetQuery:
    """Read the choices from query parameters. Values that do not parse are left out."""
    name, state = parameters.get("name", ""), parameters.get("state", "")
    return FleetQuery(name[:MAX_FILTER_CHARS], state if state in FLEET_STATES else "")


def fleet_row(row: Row) -> dict[str, Any]:
    """Fill the row of one application."""
    health, lag = row["health"], row["lag"]
    state = health["state"]
    slots: Slots = {
        "mark": Shown(MARKS.get(state, UNKNOWN), state, state),
        "name": Shown(row["application"]),
        "headline": Shown(health["headline"] if row["reason"] is None else row["reason"], state),
        "state": Shown(row["state"], "" if row["state"] == "serving" else "attention"),
        "lag": Shown(batches(lag["worst_batches"]), "unknown" if lag["worst_batches"] is None else ""),
        "lag_ms": Shown(duration(lag["worst_ms"])),
        "stores": Shown(number(len(row["stores"])), "", ", ".join(row["stores"][:12])),
    }
    if "counts" in row:
        slots |= _cluster_slots(row)
    return {"key": row["application"], "slots": slots, "link": f"applications/{quote(row['application'], safe='')}/"}


def _cluster_slots(row: Row) -> Slots:
    """Fill the slots that only a router knows."""
    fresh, reads, counts = row["freshness"], row["reads"], row["counts"]
    return {
        "freshness": Shown(duration(fresh["p50_ms"]), "", f"p99 {duration(fresh['p99_ms'])}"),
        "reads": Shown(f"{rate(reads['per_s'])}/s"),
        "errors": Shown(f"{rate(reads['errors_per_s'])}/s", "attention" if reads["errors_per_s"] else ""),
        "nodes": Shown(f"{counts['nodes_live']} of {counts['nodes_known']}"),
    }


def fleet_title(rows: Sequence[Row]) -> str:
    """Return the title of the tab: the shape of the worst state comes first."""
    worst = rows[0]["health"]["state"] if rows else "unknown"
    return f"{MARKS.get(worst, UNKNOWN)} {count(len(rows), 'application')}"


def fleet_summary(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    """Count the applications by state, and the ones that the filter hides."""
    found = Counter(row["health"]["state"] for row in rows)
    words = [f"{number(found[state])} {state}" for state in FLEET_STATES if found[state]]
    if len(shown) != len(rows):
        words.append(f"{number(len(shown))} shown")
    return " · ".join([count(len(rows), "application"), *words])
