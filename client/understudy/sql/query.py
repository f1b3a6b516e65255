"""`query`: one statement of a program, with all of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import orjson

from understudy.client.core.values import SnapshotBounds
from understudy.client.sync import Client
from understudy.sql.session import MEMORY_LIMIT, Parameters, SqlSession

if TYPE_CHECKING:
    import pyarrow as pa


def query(
    client: Client,
    statement: str,
    parameters: Parameters = None,
    *,
    memory_limit: str = MEMORY_LIMIT,
    **bounds: Unpack[SnapshotBounds],
) -> pa.Table:
    """Run a SELECT over the stores of a client, all at one version: the newest, or that which `bounds` name.

        query(client, "select * from aircraft where tailnum = $tail", {"tail": "N14228"}, version=418)

    The metadata `understudy` of the table's schema has the version. Several statements are quicker in one `SqlSession`.
    Raises SqlError, MissingExtraError, and the errors of the client.
    """
    session = SqlSession(client, memory_limit=memory_limit, bounds=bounds)
    with session, session.run(statement, parameters) as answer:
        table = answer.table()
        said = {"version": answer.version, "committed_at": answer.lease.get("committed_at")}
        return table.replace_schema_metadata({"understudy": orjson.dumps(said)})
