"""Renders the page as HTML from an overview document. Browsers without scripts show it, and scripts replace its parts.

It is rendered in pieces: a page of a thousand replicas takes longer than a router may keep other requests waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from understudy_shared.auth.principals import EVERY_STORE
from understudy_shared.base.background import sliced
from understudy_shared.page.files import Runbook, page_assets
from understudy_shared.page.replicas import (
    KINDS,
    VIEWS,
    PageQuery,
    ReplicaRow,
    cell_text,
    facts_of,
    find_replica,
    grid_view,
    kind_of,
)
from understudy_shared.page.views import (
    FLEET_STATES,
    MARKS,
    Document,
    FleetQuery,
    disagreement_slots,
    event_slots,
    figure_slots,
    fleet_row,
    fleet_summary,
    fleet_title,
    health_slots,
    indicator_slots,
    is_of_a_cluster,
    node_slots,
    restore_slots,
    snapshot_slots,
    staleness_bars,
    store_slots,
    unwell,
)
from understudy_shared.page.words import (
    CURVE_HEIGHT,
    CURVE_WIDTH,
    SPARK_HEIGHT,
    SPARK_WIDTH,
    batches,
    curve_path,
    duration,
    top_of,
)

Histories = Mapping[str, Document]
"""History documents: of `all`, of the chosen `store`, and of the partition of the `open` replica."""

NO_HISTORY: Document = {"series": {"lag_batches": [], "freshness_p50_ms": [], "freshness_p99_ms": []}}


PARTS = ("health", "figures", "stores", "nodes", "ask-stores", "events", "replicas")
"""The parts of the page that change with the overview, by the names of their templates."""


class PageReader(NamedTuple):
    """The person who views the page. `signed_in` is the principal of a session; `asks_key`: requests need a credential.
    `explored` names the stores whose keys may be listed, EVERY_STORE for all; None: Explore is left out.
    """

    signed_in: str | None = None
    asks_key: bool = False
    explored: tuple[str, ...] | None = (EVERY_STORE,)


def page_pieces(
    overview: Document, histories: Histories, query: PageQuery, root: str, reader: PageReader | None = None
) -> Iterator[str]:
    """Yield the page, piece by piece. `root` is the relative reference from the page to the root of the service."""
    shown = {**_head(overview, root), **_shown(overview, histories, query)}
    curves = _curves(histories, query)
    return _environment().get_template("page.html").generate(shown, curves=curves, reader=reader or PageReader())


def drawn_parts(overview: Document, query: PageQuery) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the parts of the page by name, each in pieces, without curves: the scripts update those."""
    shown = _shown(overview, {}, query)
    for name in PARTS:
        yield name, _environment().get_template(f"{name}.html").generate(shown)


async def joined(pieces: Iterable[str]) -> str:
    """Join the pieces, and let other requests be answered in between."""
    return "".join([piece async for few in sliced(pieces) for piece in few])


def fleet_page(overview: Document, rows: Sequence[Mapping[str, Any]], query: FleetQuery, reader: PageReader) -> str:
    """Return the overview of a router's applications as a page. `rows` are the applications that the query selects."""
    shown = {
        **_links("../"),
        "overview": overview,
        "is_of_clusters": overview.get("is_of_clusters", True),
        "rows": [fleet_row(row) for row in rows],
        "query": query,
        "states": FLEET_STATES,
        "reader": reader,
        "title": fleet_title(overview["applications"]),
        "said": fleet_summary(overview["applications"], rows),
    }
    return _environment().get_template("fleet.html").render(shown)


def runbook_page(runbook: Runbook, root: str) -> str:
    """Return a runbook as a page. `root` is the relative reference from the page to the root of the service."""
    body = Markup(runbook.html)  # noqa: S704  # our own text
    shown = {"title": runbook.title, "body": body, **_links(root)}
    return _environment().get_template("runbook.html").render(shown)


def opened_place(query: PageQuery, overview: Document) -> ReplicaRow | None:
    """Return the replica that the query opens, if it exists."""
    return find_replica(overview["grid"]["rows"], query.open)


def load_templates() -> None:
    """Compile the templates now. It takes a tenth of a second, and no request should wait for it."""
    for name in _environment().list_templates():
        _environment().get_template(name)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("understudy_shared.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals["parts"] = made.get_template("parts.html").module
    return made


def _links(root: str) -> dict[str, str]:
    """Return the links of a page to the rest of the service. They are relative, because a proxy may add a prefix."""
    return {"root": root, "static": f"{root}admin/static/{page_assets().build}/"}


def _head(overview: Document, root: str) -> dict[str, Any]:
    return {
        **_links(root),
        "router": " · ".join(filter(None, (overview.get("router_id"), overview["router"]))),
        "title": page_title(overview["application_id"], overview["health"]),
    }


def page_title(application_id: str, health: Document) -> str:
    """Return the title of the tab: the shape of the state comes first."""
    return f"{MARKS.get(health['state'], '?')} {application_id}: {health['headline']}"


def _shown(overview: Document, histories: Histories, query: PageQuery) -> dict[str, Any]:
    return {
        **_replicas(overview, histories, query),
        "overview": overview,
        "is_of_a_cluster": is_of_a_cluster(overview),
        "service": overview.get("service", "router"),
        "kinds": KINDS,
        "views": VIEWS,
        "query": query,
        "health": health_slots(overview),
        "indicators": [
            {"key": each["name"], "slots": indicator_slots(each, overview["health"]), "since": each.get("since")}
            for each in unwell(overview)
        ],
        "figures": figure_slots(overview),
        "stores": [_store(store, query) for store in overview["stores"]],
        "bars": staleness_bars(overview["reads"]),
        "nodes": [
            {
                "key": node["node_id"],
                "slots": node_slots(node),
                "live": node["live"],
                "is_draining": node["state"] == "draining",
            }
            for node in overview["nodes"] or ()
        ],
        "restores": [_restore(each) for each in overview["restores"]],
        "disagreement": [
            {"key": f"{each['node_id']} {each['node_says']}", "slots": disagreement_slots(each), "since": each["since"]}
            for each in overview["disagreement"]
        ],
        "snapshots": [
            {"key": each["id"], "slots": snapshot_slots(each), "expires_at": each["expires_at"]}
            for each in overview["snapshots"]["leases"]
        ],
        "events": [
            {
                "key": each["id"],
                "slots": event_slots(each),
                "at": each["at"],
                "anchor": f"event-{each['id']}-{each['at']}",
            }
            for each in overview["events"]
        ],
    }


def _store(store: Document, query: PageQuery) -> dict[str, Any]:
    name = store["store"]
    is_chosen = name == query.store
    link = query.link(store="" if is_chosen else name, page=1, open="")
    return {
        "key": name,
        "slots": store_slots(store),
        "path": curve_path(store["history"], top_of(store["history"]), SPARK_WIDTH, SPARK_HEIGHT),
        "link": link,
        "is_chosen": is_chosen,
        "columns": orjson.dumps(store["key"]).decode(),
        "example": store["example"] or "",
    }


def _restore(restore: Document) -> dict[str, Any]:
    return {
        "key": f"{restore['node_id']}/{restore['task']}",
        "slots": restore_slots(restore),
        "done": restore["done_bytes"],
        "total": restore["total_bytes"],
    }


def _replicas(overview: Document, histories: Histories, query: PageQuery) -> dict[str, Any]:
    opened: dict[str, Any] = {"place": None, "title": "", "facts": []}
    place = opened_place(query, overview)
    if place is not None:
        kind = kind_of(place.cell)
        opened = {
            "place": place,
            "title": f"{place.store} {place.partition} on {place.node_id}: {cell_text(place.cell, kind)}",
            "facts": facts_of(place, overview["end"]),
        }
    opened["lines"] = _lines(histories.get("open", NO_HISTORY), _LAG_LINES)
    return {"grid": grid_view(overview["grid"], query), "opened": opened, "close_link": query.link(open="")}


_LAG_LINES = (("lag_batches", "now"),)
_FRESHNESS_LINES = (("freshness_p99_ms", "p99"), ("freshness_p50_ms", "p50"))


def _curves(histories: Histories, query: PageQuery) -> list[dict[str, Any]]:
    lag = histories.get("store", histories["all"] if not query.store else NO_HISTORY)
    of = f"of {query.store}" if query.store else "of the worst store partition"
    return [
        {"id": "lag-curve", "label": f"Lag {of}", "unit": "batches", "lines": _lines(lag, _LAG_LINES)},
        {"id": "freshness-curve", "label": "From commit to answer", "unit": "ms",
         "lines": _lines(histories["all"], _FRESHNESS_LINES)},
    ]  # fmt: skip


def _lines(history: Document, names: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    """Return the lines of one curve, on one scale, each with its last value."""
    series = history["series"]
    top = top_of(*(series[name] for name, _ in names))
    written = batches if names is _LAG_LINES else duration
    return [
        {
            "name": name,
            "label": label,
            "now": written(series[name][-1]) if series[name] else written(None),
            "path": curve_path(series[name], top, CURVE_WIDTH, CURVE_HEIGHT),
            "top": written(top),
        }
        for name, label in names
    ]
