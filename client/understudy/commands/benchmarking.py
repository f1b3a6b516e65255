"""`understudy bench`: how fast a running node or router answers lookups, and how old its answers are.

Lookups go over keep-alive connections. Closed loop: each connection sends its next lookup when the answer is there.
With a rate, lookups fall due at fixed times whether or not the server keeps up, and their latency counts from then: a
slow server cannot hide its queue.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any, BinaryIO, cast
from urllib.parse import urlencode

import click
import orjson

from understudy.calls.credentials import authorization, client_context
from understudy.calls.http_client import path_segment, server_endpoint
from understudy.calls.options import (
    ServerOptions,
    as_parameters,
    bound_options,
    given_bounds,
    server_options,
    wait_ms_of,
)
from understudy.client.core.exchange import Request
from understudy.commands.reading import keys_of_lines
from understudy.terminal.console import print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.telemetry.metrics import Histogram, upper_bound

TICK_S = 0.005
REOPEN_AFTER_S = 0.1
MAX_DUE = 100_000
"""Number of lookups that may wait for a connection. Beyond it, the oldest are not sent, and counted."""

NO_ANSWER = "no answer in time"
LOST = "connection lost"
NO_HTTP = "no HTTP reply, or one too large"
NOT_SENT = "not sent: the server cannot keep up with the rate"

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Limit on a reply: twice the largest answer of a node."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


PERCENTILES = (50.0, 90.0, 99.0, 99.9)

_TIME_LAG = re.compile(rb'"time_lag_ms":(\d+)')
_ROLE = re.compile(rb'"served_by":\{[^}]*"role":"(\w+)"')
_TYPE = re.compile(rb'"type":"([^"]+)"')


_BOUNDS_MS = (0.0, *(1.01**step for step in range(-1000, 1500)))
"""Each 1 % above the one before, from 50 ns to 50 minutes."""


class Measured(Histogram):
    """Measurements in ms. Percentiles are at most 1 % too high; `largest` is exact."""

    def __init__(self) -> None:
        super().__init__(_BOUNDS_MS)
        self.largest = 0.0

    def observe(self, value: float) -> None:
        super().observe(value)
        self.largest = max(self.largest, value)

    def percentile(self, percent: float) -> float | None:
        """Return the value that so many per cent do not exceed; `None` without any."""
        found = upper_bound(self.bounds, self.counts, percent / 100)
        return None if found is None else min(self.largest, found)


class LoadCounts:
    """Latency and time lag are in ms; `unknown_lags` counts answers whose time lag is null."""

    def __init__(self) -> None:
        self.latency_ms = Measured()
        self.time_lag_ms = Measured()
        self.unknown_lags = 0
        self.outcomes: Counter[str] = Counter()
        self.roles: Counter[str] = Counter()

    @property
    def are_all_answered(self) -> bool:
        """Whether every lookup was found or absent."""
        return set(self.outcomes) <= {"found", "absent"}

    def failed(self, why: str) -> None:
        self.outcomes[why] += 1

    def answered(self, status: int, body: bytes, latency_ms: float) -> None:
        """Count a reply. Only a body that says so is found or absent."""
        self.latency_ms.observe(latency_ms)
        if status in {200, 404} and b'"found":' in body:
            self.outcomes["found" if status == 200 else "absent"] += 1
            lag, role = _TIME_LAG.search(body), _ROLE.search(body)
            if lag is None:
                self.unknown_lags += 1
            else:
                self.time_lag_ms.observe(int(lag.group(1)))
            if role is not None:
                self.roles[role.group(1).decode()] += 1
            return
        problem = _TYPE.search(body)
        self.outcomes[f"status {status}" if problem is None else problem.group(1).decode(errors="replace")] += 1

    def document(self, took_s: float) -> dict[str, Any]:
        """Return the report as JSON. Rates count replies."""
        return {
            "seconds": round(took_s, 3),
            "per_second": round(self.latency_ms.total / took_s, 1),
            "latency_ms": _percentiles(self.latency_ms),
            "time_lag_ms": _percentiles(self.time_lag_ms) | {"unknown": self.unknown_lags},
            "outcomes": dict(self.outcomes.most_common()),
            "roles": dict(self.roles.most_common()),
        }

    def lines(self, took_s: float) -> list[str]:
        return [f"  {name:9}  {text}" for name, text in self._rows(took_s)]

    def _rows(self, took_s: float) -> Iterator[tuple[str, str]]:
        yield "lookups", f"{self.latency_ms.total:,} in {took_s:.1f} s, {self.latency_ms.total / took_s:,.0f} /s"
        yield "latency", _line(self.latency_ms)
        yield "outcomes", ", ".join(f"{what} {number:,}" for what, number in self.outcomes.most_common()) or "none"
        lag = _line(self.time_lag_ms)
        yield "time lag", f"{lag}; unknown {self.unknown_lags:,}" if self.unknown_lags else lag
        yield "served by", ", ".join(f"{role} {number:,}" for role, number in self.roles.most_common()) or "no replica"


def _percentiles(histogram: Measured) -> dict[str, float | None]:
    named: dict[str, float | None] = {f"p{percent:g}": histogram.percentile(percent) for percent in PERCENTILES}
    return {name: None if value is None else round(value, 3) for name, value in named.items()} | {
        "max": round(histogram.largest, 3) if histogram.total else None
    }


def _line(histogram: Measured) -> str:
    if not histogram.total:
        return "none"
    parts = [f"p{percent:g} {_short(histogram.percentile(percent) or 0.0)}" for percent in PERCENTILES]
    return f"{', '.join(parts)}, slowest {_short(histogram.largest)} ms"


def _short(value: float) -> str:
    """Print three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class LoadRun:
    """One run against one server. `counts` may be read at any time."""

    def __init__(
        self,
        host: str,
        port: int,
        requests: Sequence[bytes],
        *,
        connections: int,
        rate: float | None,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare a run. `requests` are whole requests, sent in turns. `rate` is in lookups a second, None for a closed
        loop. `tls`: the context for a server that speaks TLS.
        """
        self.counts = LoadCounts()
        self._place = host, port
        self._requests = cycle(requests)
        self._connections = connections
        self._rate = rate
        self._timeout_s = timeout_s
        self._tls = tls
        self._open: set[_LookupConnection] = set()
        self._idle: deque[_LookupConnection] = deque()
        self._due_s: deque[float] = deque()
        self._reopening: set[asyncio.Task[None]] = set()
        self._ends = False

    async def run(self, seconds: float) -> float:
        """Drive for so long; return the seconds that it took.

        Raises OSError or TimeoutError when it cannot connect in the beginning.
        """
        loop = asyncio.get_running_loop()
        for _ in range(self._connections):
            await self._connect()
        began_s, fallen_due = loop.time(), 0
        while (now_s := loop.time()) < began_s + seconds:
            while self._rate is not None and fallen_due <= (now_s - began_s) * self._rate:
                self._due_s.append(began_s + fallen_due / self._rate)
                fallen_due += 1
            self._send_due()
            for connection in list(self._open):
                connection.expire(now_s - self._timeout_s)
            await asyncio.sleep(TICK_S)
        took_s, self._ends = loop.time() - began_s, True
        for task in self._reopening:
            task.cancel()
        for connection in list(self._open):
            connection.close()
        return took_s

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(lambda: _LookupConnection(self), *self._place, ssl=self._tls)
        await asyncio.wait_for(opening, self._timeout_s)

    async def _reopen(self) -> None:
        while not self._ends:
            await asyncio.sleep(REOPEN_AFTER_S)
            with suppress(OSError, TimeoutError):
                await self._connect()
                break

    def _send_due(self) -> None:
        while self._due_s and self._idle:
            connection = self._idle.popleft()
            if connection.is_open:
                connection.send(next(self._requests), self._due_s.popleft())
        while len(self._due_s) > MAX_DUE:
            self._due_s.popleft()
            self.counts.failed(NOT_SENT)

    # ---- a connection's side

    def ready(self, connection: _LookupConnection, now_s: float) -> None:
        """Use a connection that was opened, or has its answer."""
        self._open.add(connection)
        if self._ends:
            return
        if self._rate is None:
            connection.send(next(self._requests), now_s)
        else:
            self._idle.append(connection)
            self._send_due()

    def lost(self, connection: _LookupConnection, why: str | None) -> None:
        """Count a closed connection; `why` is the outcome of its lookup, None without one in flight."""
        self._open.discard(connection)
        if self._ends:
            return
        if why is not None:
            self.counts.failed(why)
        task = asyncio.get_running_loop().create_task(self._reopen(), name="connect again")
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)


class _LookupConnection(asyncio.Protocol):
    """A connection with one lookup at a time."""

    def __init__(self, load: LoadRun) -> None:
        self.is_open = False
        self._load = load
        self._read = b""
        self._due_s: float | None = None
        """The time when the lookup in flight fell due; None without one."""
        self._sent_s = 0.0
        self._why: str | None = None
        self._now = asyncio.get_running_loop().time

    def send(self, request: bytes, due_s: float) -> None:
        self._due_s, self._sent_s = due_s, self._now()
        self._transport.write(request)

    def expire(self, sent_before_s: float) -> None:
        """Give the lookup in flight up, if it was sent before then."""
        if self._due_s is not None and self._sent_s < sent_before_s:
            self._why = NO_ANSWER
            self.close()

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True
        self._load.ready(self, self._now())

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._load.lost(self, None if self._due_s is None else self._why or LOST)

    def data_received(self, data: bytes) -> None:
        read = self._read = self._read + data
        if not read.startswith(b"HTTP/1."[: len(read)]) or len(read) > MAX_REPLY_BYTES:
            self._why = NO_HTTP
            self.close()
            return
        head_end = read.find(b"\r\n\r\n")
        if head_end < 0 or self._due_s is None:
            return
        length = _LENGTH.search(read, 0, head_end)
        end = head_end + 4 + (int(length.group(1)) if length else 0)
        if len(read) < end:
            return
        if not read[9:12].isdigit():
            self._why = NO_HTTP
            self.close()
            return
        status, body, due_s, now_s = int(read[9:12]), read[head_end + 4 : end], self._due_s, self._now()
        self._read, self._due_s = b"", None
        self._load.counts.answered(status, body, (now_s - due_s) * 1000)
        if b"\r\nconnection: close" in read[:head_end].lower():
            self.close()
        else:
            self._load.ready(self, now_s)


MAX_KEYS = 1_000_000
MAX_RATE = 1_000_000
SHOWN_EVERY_S = 0.2


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.option(
    "--keys", "keys_file", type=click.File("rb"), required=True, metavar="FILE",
    help="JSON keys, one per line, asked for in turns; - is standard input.",
)  # fmt: skip
@click.option("--connections", type=click.IntRange(1, 10_000), default=64, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True, max=MAX_RATE),
    help="Lookups a second, whether or not the server keeps up.  [default: each connection sends on as it is answered]",
)  # fmt: skip
@bound_options
@server_options
def bench(
    store: str,
    keys_file: BinaryIO,
    *,
    connections: int,
    seconds: float,
    rate: float | None,
    options: ServerOptions,
    **bounds: Any,
) -> None:
    """Load a running server with lookups of STORE, and report rate, latency, outcomes and the age of the answers.

    Latency is measured by this process, which shares the machine's cores with a server on it. With --rate it counts
    from when a lookup fell due, so that a server that falls behind is not flattered.

    Exits with 0 when every lookup was found or absent, else with 3.

    \b
    Examples:
      jq -c '[.tailnum]' planes.json | understudy bench aircraft --keys -
      understudy bench aircraft --keys keys.txt --rate 5000 --max-staleness-ms 2000 --json
    """
    place = server_endpoint(options.url)
    keys = keys_of(keys_file)
    given = given_bounds(bounds)
    path = f"/v1/stores/{path_segment(store)}/lookup"
    # This first lookup reports a wrong store, key or bound before the load begins.
    with options.server() as server:
        server.get(path, {"key": keys[0], **as_parameters(given)}, wait_ms=wait_ms_of(given))
        own_path = server.state.named(Request("GET", path)).target
    targets = [f"{own_path}?{urlencode({'key': key, **as_parameters(given)})}" for key in keys]
    shown = "".join(f"{name}: {value}\r\n" for name, value in authorization(os.environ).items())
    requests = [
        f"GET {place.prefix}{target} HTTP/1.1\r\nhost: {place.authority}\r\n{shown}\r\n".encode() for target in targets
    ]
    load = LoadRun(
        place.host,
        place.port,
        requests,
        connections=connections,
        rate=rate,
        timeout_s=options.timeout_s + wait_ms_of(given) / 1000,
        tls=client_context(os.environ) if place.scheme == "https" else None,
    )
    took_s = asyncio.run(_run(load, seconds, place.url))
    if options.as_json:
        print_json(orjson.dumps(load.counts.document(took_s)))
    else:
        print_lines(load.counts.lines(took_s))
    sys.exit(ExitCode.OK if load.counts.are_all_answered else ExitCode.REFUSED)


def keys_of(lines: BinaryIO) -> Sequence[str]:
    """Read the JSON keys of a file. Raises CommandError without keys, with more than MAX_KEYS, or other than JSON."""
    keys: list[str] = []
    for key in keys_of_lines(lines, source="--keys"):
        keys.append(key)
        if len(keys) > MAX_KEYS:
            raise CommandError(f"the file has more than {MAX_KEYS:,} keys", where="--keys", exit_code=ExitCode.USAGE)
    if not keys:
        raise CommandError(
            "there is no key to look up",
            where="--keys",
            fix="Write a JSON key per line, as for understudy lookup --stdin",
            exit_code=ExitCode.USAGE,
        )
    return keys


async def _run(load: LoadRun, seconds: float, url: str) -> float:
    """Drive the load; on a terminal, show how far it is."""
    shown = asyncio.get_running_loop().create_task(_show(load, seconds)) if sys.stderr.isatty() else None
    try:
        return await load.run(seconds)
    except (OSError, TimeoutError) as error:
        what = f"cannot connect: {error or type(error).__name__}"
        raise CommandError(what, where=url, fix="Name a server with --url", exit_code=ExitCode.UNREACHABLE) from None
    finally:
        if shown is not None:
            shown.cancel()
            with suppress(asyncio.CancelledError):
                await shown


async def _show(load: LoadRun, seconds: float) -> None:
    def so_far(_: int | None) -> str:
        return f"{load.counts.latency_ms.total:,} lookups"

    with click.progressbar(range(round(seconds / SHOWN_EVERY_S)), file=sys.stderr, item_show_func=so_far) as ticks:
        for _ in ticks:
            await asyncio.sleep(SHOWN_EVERY_S)
