"""The Python client as a program uses it, with the types that a checker sees."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

from understudy import AsyncClient, Client, Result, WatchEvent
from understudy.client.pages import Count, Row


@dataclass
class Aircraft:
    """The value of a store, as `understudy types` prints such classes."""

    flights: int | None
    delay_sum: int | None


def plain(client: Client) -> int:
    """Read values as JSON has them."""
    result = client.store("aircraft").get("N14228")
    assert_type(result, Result[Any])
    assert_type(client.store("aircraft").count(), Count)
    flights = 0
    for row in client.store("aircraft").scan(limit=100):
        assert_type(row, Row[Any])
        flights += row.value["flights"]
    return flights


def typed(client: Client) -> int | None:
    """Read values as models."""
    result = client.store("aircraft", value=Aircraft).get("N14228")
    assert_type(result, Result[Aircraft | None])
    return result.value.flights if result.value is not None else None


def newest(client: Client) -> int | None:
    """Wait for the next version that changes a key."""
    with client.store("aircraft", value=Aircraft).watch("N14228") as watch:
        for event in watch:
            assert_type(event, WatchEvent[Aircraft | None])
            if event.kind == "value":
                return event.version
    return None


def changed(client: Client) -> list[str]:
    """Read what the versions from one on changed, for all keys that begin alike."""
    lines = []
    for change in client.store("aircraft", value=Aircraft).changes(2, prefix=["N14228"]):
        assert_type(change, WatchEvent[Aircraft | None])
        flights = change.value.flights if change.value is not None else None
        lines.append(f"{change.version}: {change.key['tailnum']} {flights}")
    return lines


async def watched(client: AsyncClient) -> int | None:
    """Wait on an event loop for the first of all keys that begin alike."""
    async with client.store("aircraft", value=Aircraft).watch(prefix=["N14228"]) as watch:
        event = await anext(watch)
        assert_type(event, WatchEvent[Aircraft | None])
        return event.version


async def awaited(client: AsyncClient) -> list[int]:
    """Read on an event loop."""
    results = await client.store("aircraft", value=Aircraft).get_many(["N14228", "N24211"])
    assert_type(results, list[Result[Aircraft | None]])
    rows = [row async for row in client.store("aircraft").scan()]
    assert_type(rows, list[Row[Any]])
    return [row.value["flights"] for row in rows]


async def on_a_loop() -> None:
    """Read by a client that is closed behind it."""
    async with AsyncClient() as client:
        print([row.value["flights"] async for row in client.store("aircraft").scan()], await watched(client))


if __name__ == "__main__":
    with Client() as blocking:
        print(plain(blocking))
        print(typed(blocking), changed(blocking))
    asyncio.run(on_a_loop())
