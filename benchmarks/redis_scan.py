"""The peer of an export: rows that were copied into Redis, and an application that streams them by SCAN and MGET."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import redis

from benchmarks.big_checkpoint import BigCheckpoint
from benchmarks.servers import Server, server
from understudy.demo.local_redis import local_redis

REDIS_SCAN = """
import sys, redis.asyncio, uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
app, values = FastAPI(), redis.asyncio.from_url(sys.argv[2])
async def rows():
    cursor, is_first = 0, True
    while cursor or is_first:
        cursor, keys = await values.scan(cursor, count=1000)
        is_first = False
        found = await values.mget(keys) if keys else []
        yield b"".join(b'{"row":{"key":{"key":"%b"},"value":%b}}\\n' % each for each in zip(keys, found))
@app.get("/ready")
async def ready():
    return Response()
@app.get("/export")
async def export():
    return StreamingResponse(rows(), media_type="application/x-ndjson")
uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
"""

COPIED_AT_ONCE = 10_000
READ_BYTES = 1 << 20


@contextmanager
def redis_export(checkpoint: BigCheckpoint) -> Iterator[Server]:
    """Start Redis with all rows of a checkpoint, and the application before it."""
    with local_redis() as values:
        with redis.Redis.from_url(values.url) as client:
            for start in range(0, checkpoint.keys, COPIED_AT_ONCE):
                numbers = range(start, min(start + COPIED_AT_ONCE, checkpoint.keys))
                client.mset({checkpoint.key(number): _value(checkpoint, number) for number in numbers})
        with server(REDIS_SCAN, values.url, ready_path="/ready") as running:
            yield running


def _value(checkpoint: BigCheckpoint, number: int) -> bytes:
    names = ("count", "sum", "avg_sum", "avg_count", "min", "max")
    return orjson.dumps(dict(zip(names, checkpoint.value(number), strict=True)))


def rows_per_second(peer: Server, keys: int) -> float:
    """Return the rows a second of one export. Raises RuntimeError when it has not all keys."""
    connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=60)
    began_s, rows = time.perf_counter(), 0
    connection.request("GET", "/export")
    response = connection.getresponse()
    while piece := response.read(READ_BYTES):
        rows += piece.count(b"\n")
    if rows < keys:
        raise RuntimeError(f"the export has {rows} rows of {keys}")
    return keys / (time.perf_counter() - began_s)
