"""The overview of many applications as texts: its filter, which the URL holds, and the slots of its rows (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from understudy_shared.page.views import MARKS, Shown, Slots
from understudy_shared.page.words import UNKNOWN, batches, count, duration, number, rate

Row = Mapping[str, Any]

FLEET_STATES = ("hurt", "unknown", "attention", "ok")
"""The choices of the filter besides all, the worst first."""

MAX_FILTER_CHARS = 256


class FleetQuery(NamedTuple):
    """The reader's choices: a part of a name, and a state of health."""

    name: str = ""
    state: str = ""

    def lets_through(self, row: Row) -> bool:
        """Whether an application is shown: by its name, or that of one of its stores."""
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
    """Fill what only a router knows."""
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
    """Count the applications by state, and those that the filter leaves out."""
    found = Counter(row["health"]["state"] for row in rows)
    words = [f"{number(found[state])} {state}" for state in FLEET_STATES if found[state]]
    if len(shown) != len(rows):
        words.append(f"{number(len(shown))} shown")
    return " · ".join([count(len(rows), "application"), *words])
