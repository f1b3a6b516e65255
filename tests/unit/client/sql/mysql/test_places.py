"""The places of statements, when a connection or a statement is killed at any moment of its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import pytest
from mysql_mimic.errors import MysqlError
from tests.support.cluster.fake_cluster import until

from understudy.sql.engine import Engine
from understudy.sql.mysql.login import Login
from understudy.sql.mysql.server import Front, Limits, Servers
from understudy.sql.mysql.session import StoreSession
from understudy.sql.mysql.statements import Found

TURNS = range(6)
"""Turns of the event loop between the moment in which a place gets free and the kill."""


def nothing() -> None:
    pass


def never(engine: Engine) -> AbstractContextManager[Found]:
    raise NotImplementedError


@asynccontextmanager
async def waiting_statement(turns: int) -> AsyncIterator[tuple[Front, StoreSession, asyncio.Task[list[Any]]]]:
    """Give a session whose statement waited for the only place, which got free so many turns ago."""
    front = Front(
        Servers(["http://127.0.0.1:1"], 1.0, 1.0, None, {}), Limits(max_statements=1), "64MiB", None, needs_key=False
    )
    await front.start("127.0.0.1", 0)
    session = StoreSession(front, nothing)
    session.username = Login("reader", "")
    await session.reset()

    async def ask() -> list[Any]:
        found = await session.handle_query("select 1", {})
        return [row async for row in found.rows]

    holder = await front.places.begin(never, nothing)
    asked = asyncio.ensure_future(ask())
    await until(lambda: session.is_busy, what="a statement that waits")
    front.places.leave(holder, None)
    for _ in range(turns):
        await asyncio.sleep(0)
    yield front, session, asked
    await session.close()
    await until(lambda: not front.places.running, what="the end of the statement")
    await front.stop()


@pytest.mark.parametrize("turns", TURNS)
async def test_a_connection_that_is_killed_while_its_statement_begins_keeps_no_place(turns: int) -> None:
    async with waiting_statement(turns) as (_, _, asked):
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked


@pytest.mark.parametrize("turns", TURNS)
async def test_a_statement_that_is_killed_while_it_begins_has_no_result(turns: int) -> None:
    async with waiting_statement(turns) as (_, session, asked):
        session.stop("it was killed")
        with pytest.raises(MysqlError, match="it was killed"):
            await asked
