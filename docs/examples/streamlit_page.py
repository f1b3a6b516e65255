"""A Streamlit page over the state of a streaming query: the busiest aircraft, and one of them with its history.

UNDERSTUDY_URL=http://router-1:8080,http://router-2:8080 streamlit run docs/examples/streamlit_page.py

Install '.' and streamlit. All visitors of the page share one client.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import streamlit as st

from understudy import Client, UnderstudyError

EVERY = timedelta(seconds=2)


def busiest(client: Client, count: int) -> tuple[list[dict[str, Any]], int | None]:
    """Return the aircraft that flew most, and the version that all of them are of."""
    page = next(client.store("aircraft").scan(order="flights", reverse=True, limit=count).pages())
    return [{**row.key, **row.value} for row in page.items], page.version


def show_busiest(client: Client) -> None:
    """Show the table. State that cannot be read now is said, and asked for again."""
    count = st.number_input("Aircraft", min_value=1, max_value=100, value=10)
    try:
        rows, version = busiest(client, int(count))
    except UnderstudyError as error:
        st.error(f"The state cannot be read now: {error.what}")
        return
    st.caption(f"version {version}")
    st.dataframe(rows)


def show_one(client: Client, tail: str) -> None:
    """Show one aircraft, and how old that is."""
    try:
        found = client.store("aircraft").get(tail, max_staleness=timedelta(minutes=1))
        versions = list(client.store("aircraft").history(tail))
    except UnderstudyError as error:
        st.error(f"{error.what}. {error.fix}")
        return
    if not found:
        st.warning(f"There is no aircraft {tail}.")
        return
    st.metric("flights", found.value["flights"])
    st.caption(f"version {found.version}, {found.lag.time_lag_ms} ms behind the query")
    st.line_chart({each.version: each.value["flights"] for each in versions if each})


def main() -> None:
    """Draw the page."""
    client = st.cache_resource(Client)()
    st.title("Flights")
    st.fragment(show_busiest, run_every=EVERY)(client)
    tail = st.text_input("Tail number").strip()
    if tail:
        show_one(client, tail)


main()
