"""The state of the page that its URL holds, so that a link shows a colleague the same (pure).

Values that do not parse are left out: a bad link shows the page, not an error. `static/url.js` reads and writes the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from urllib.parse import urlencode

KINDS = ("unwell", "lagging", "error", "restoring", "opening", "unknown", "dead", "closed")
"""The choices of the filter of the replicas, besides "all"."""

VIEWS = ("grid", "table")

MAX_VALUE_CHARS = 2000
MAX_PAGE = 100_000


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The reader's choices: the filter, how replicas are shown, which is open, the key to look up, and what is
    explored: the store, a prefix, a filter, an order, and the key that is open there.
    """

    store: str = ""
    state: str = ""
    view: str = "grid"
    page: int = 1
    open: str = ""
    ask: str = ""
    key: str = ""
    explore: str = ""
    prefix: str = ""
    where: str = ""
    order: str = ""
    row: str = ""

    def link(self, **changes: object) -> str:
        """Return the query of a link to the page with some choices changed. Choices equal to the default are left
        out.
        """
        values = {each.name: changes.get(each.name, getattr(self, each.name)) for each in fields(self)}
        given = {each.name: values[each.name] for each in fields(self) if values[each.name] != each.default}
        return f"?{urlencode(given)}" if given else "?"


def read_query(parameters: Mapping[str, str]) -> PageQuery:
    """Read the choices from query parameters."""

    def given(name: str) -> str:
        value = parameters.get(name, "")
        return value if len(value) <= MAX_VALUE_CHARS else ""

    state, view, page = given("state"), given("view"), given("page")
    is_number = page.isascii() and page.isdigit() and len(page) <= 6
    return PageQuery(
        store=given("store"),
        state=state if state in KINDS else "",
        view=view if view in VIEWS else "grid",
        page=min(max(1, int(page)), MAX_PAGE) if is_number else 1,
        open=given("open"),
        ask=given("ask"),
        key=given("key"),
        explore=given("explore"),
        prefix=given("prefix"),
        where=given("where"),
        order=given("order"),
        row=given("row"),
    )
