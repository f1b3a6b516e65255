"""The page of limits: each with its value, as the code has it, the setting that changes it, and what is beyond it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tools.reference.markdown import GENERATED, code, page, table

from understudy_node.checkpoint.logs import MAX_LOG_BYTES
from understudy_node.http.reads import MAX_BATCH_BYTES
from understudy_node.replica.past_versions import MAX_RUNNING
from understudy_node.replica.pinned import MAX_PINNED_BYTES, MAX_PINNED_DISK_BYTES, MAX_PINNED_VIEWS
from understudy_node.replica.snapshot_leases import MAX_LEASED_VERSIONS, MAX_LEASES
from understudy_node.settings import ClusterNodeSettings
from understudy_node.stores.key_history import MAX_HISTORY_BYTES
from understudy_node.stores.many import MAX_SORTED
from understudy_router.settings import RouterSettings
from understudy_shared.auth.credentials import MAX_ISSUERS, MAX_KEYS
from understudy_shared.auth.presented import MAX_TOKEN_BYTES
from understudy_shared.base.sizes import size_text
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES, MAX_PARTITIONS, MAX_STORES, MAX_TASKS
from understudy_shared.cluster.node_calls import MAX_IN_FLIGHT
from understudy_shared.cluster.view import MAX_NODES, MIN_STRANGERS, STRANGERS_PER_KNOWN_NODE
from understudy_shared.http.cors import MAX_ORIGINS
from understudy_shared.http.edge import MAX_BODY_BYTES
from understudy_shared.http.problems import ProblemType
from understudy_shared.http.target import MAX_TARGET_BYTES
from understudy_shared.page.feed import MAX_VIEWERS
from understudy_shared.page.series import MAX_SERIES
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, MAX_WAIT_MS
from understudy_shared.reads.changes import MAX_VERSIONS
from understudy_shared.reads.prefix_watch import MAX_REMEMBERED
from understudy_shared.reads.scan_question import MAX_SCAN_BYTES, MAX_SCAN_ROWS
from understudy_shared.reads.selection import MAX_PAGE_ELEMENTS
from understudy_shared.reads.snapshot_lease import MAX_TTL_S
from understudy_shared.reads.where import MAX_TERMS, MAX_WHERE_BYTES
from understudy_shared.server.connection_limits import MAX_HEADER_BYTES
from understudy_shared.server.made_files import MAX_FILE_BYTES, MAX_HELD_BYTES, MAX_HELD_FILES, MAX_LIVING_BYTES
from understudy_shared.server.prefix_watches import (
    MAX_BEGINNING,
    MAX_PREFIX_WATCHES,
    MAX_PRESENT,
    MAX_PRESENT_BYTES,
)
from understudy_shared.server.several_reads import MAX_READS
from understudy_shared.server.watch_streams import MAX_WATCHED_KEYS
from understudy_shared.settings.common import MAX_KEY_BYTES

Row = tuple[str, str, str, str]
"""A limit: of what, how much, by which setting, and what is beyond it."""

_UNIT = re.compile(r"(?<=\d)(?=[KMGT]iB)")
_HEAD = ("of", "at most", "setting", "beyond")


def _set(name: str, unit: str = "") -> tuple[str, str]:
    """Return the default of a setting, and its name."""
    field = (ClusterNodeSettings.model_fields | RouterSettings.model_fields)[name]
    default = field.default
    text = _size(default) if unit == "bytes" else f"{default:,}{unit and ' '}{unit}"
    return text, code(name)


def _size(size_bytes: int) -> str:
    """Return a size as prose has it: `64 KiB`."""
    return _UNIT.sub(" ", size_text(size_bytes))


def _fixed(text: str | int) -> tuple[str, str]:
    return (f"{text:,}" if isinstance(text, int) else text), ""


def _problem(problem: ProblemType, more: str = "") -> str:
    return f"{problem.status} {code(problem.slug)}{more}"


_TOO_LARGE = _problem(ProblemType.TOO_LARGE)
_OVERLOADED = _problem(ProblemType.OVERLOADED)
_BAD_BOUND = _problem(ProblemType.BAD_BOUND)
_DEADLINE = _problem(ProblemType.DEADLINE)

_REQUESTS: Sequence[Row] = (
    ("keys of a batch, or of a read of several stores", *_fixed(MAX_BATCH_KEYS), _TOO_LARGE),
    ("stores of one read at one version", *_fixed(MAX_READS), _TOO_LARGE),
    (
        "a key, as Spark encodes it",
        *_set("max_key_bytes", "bytes"),
        f"{_TOO_LARGE}, in a batch of that key alone. The setting goes up to {_size(MAX_KEY_BYTES)}",
    ),
    ("a body", *_fixed(_size(MAX_BODY_BYTES)), _TOO_LARGE),
    (
        "a path, a query, as sent",
        *_fixed(f"{_size(MAX_TARGET_BYTES)} each"),
        f"{_TOO_LARGE}, {_problem(ProblemType.TARGET_TOO_LONG)}: send long keys in a batch",
    ),
    ("headers", *_fixed(_size(MAX_HEADER_BYTES)), _problem(ProblemType.HEADERS_TOO_LARGE)),
    ("waiting for a version (`wait_ms`)", *_fixed(f"{MAX_WAIT_MS:,} ms"), _BAD_BOUND),
    ("comparisons of a scan", *_fixed(f"{MAX_TERMS}, {_size(MAX_WHERE_BYTES)}"), _BAD_BOUND),
    ("versions of a read of changes", *_fixed(MAX_VERSIONS), _BAD_BOUND),
    ("keys of a watch", *_fixed(MAX_BATCH_KEYS), _TOO_LARGE),
    (
        "keys with the prefix of a watch, when it begins",
        *_fixed(f"{MAX_PRESENT:,}, {_size(MAX_PRESENT_BYTES)}"),
        f"{_TOO_LARGE}. Later ones have no limit; of {MAX_REMEMBERED:,} it is remembered what was sent",
    ),
    ("a token of an issuer", *_fixed(_size(MAX_TOKEN_BYTES)), _problem(ProblemType.UNAUTHENTICATED)),
)

_ANSWERS: Sequence[Row] = (
    ("elements of a key in one answer", *_fixed(f"{MAX_PAGE_ELEMENTS:,}, 1 MiB"), "the next page: `next_cursor`"),
    ("sessions or timers of a key, which are sorted", *_fixed(MAX_SORTED), f"{_TOO_LARGE}, in a batch of that key"),
    (
        "rows of a page of a scan",
        *_fixed(f"{MAX_SCAN_ROWS:,}, {_size(MAX_SCAN_BYTES)}, 200 ms"),
        "the next page, which may be empty: go on until `next_cursor` is null",
    ),
    ("a page in an order, of windows, or of many passed-over keys", *_fixed("3 s"), _DEADLINE),
    (
        "results of a batch of keys that have many, at a node",
        *_fixed(_size(MAX_BATCH_BYTES)),
        f"{_TOO_LARGE} of the keys behind",
    ),
    ("a page of a history", *_fixed(f"2 s, {_size(MAX_HISTORY_BYTES)}"), "the next page: `next_from`"),
    ("a whole lookup, at a router", *_set("deadline_ms", "ms"), _DEADLINE),
    ("one node's part in it", *_set("hop_timeout_ms", "ms"), "another replica is asked"),
)

_AT_ONCE: Sequence[Row] = (
    ("requests in flight", *_set("max_in_flight"), _OVERLOADED),
    ("scans and counts, in each process", *_set("max_scans_in_flight"), _OVERLOADED),
    ("exports and reads of changes, in each process", *_set("max_exports_in_flight"), _OVERLOADED),
    (
        "[files of stores](../api.md#a-store-is-a-url) that are made before they are sent",
        (
            f"{MAX_FILE_BYTES >> 20} MiB each; of an application {MAX_HELD_FILES} files and {MAX_HELD_BYTES >> 20} MiB "
            f"are kept, {MAX_LIVING_BYTES >> 20} MiB with those that readers take"
        ),
        "",
        f"413 `too-large`; those not used for long are made anew; {_OVERLOADED}",
    ),
    ("histories, at a node", *_fixed(MAX_RUNNING), _OVERLOADED),
    ("watches, in each process", *_set("max_watchers"), _OVERLOADED),
    ("keys of all watches of a process", *_fixed(MAX_WATCHED_KEYS), _OVERLOADED),
    (
        "watches of a prefix, in each process",
        *_fixed(MAX_PREFIX_WATCHES),
        f"{_OVERLOADED}. Each counts as {MAX_PRESENT:,} keys. {MAX_BEGINNING} begin at a time; the others wait",
    ),
    (
        "calls of one kind from a router to nodes, for each application",
        *_fixed(MAX_IN_FLIGHT),
        "they wait for a place until their deadline. Scans, exports, leases, watches and heartbeats are kinds",
    ),
    (
        "connections",
        *_set("max_connections"),
        f"idle ones make room, then {_OVERLOADED}. It is half the limit of open files where that is less",
    ),
    (
        "memory",
        "that of the control group, else 80 % of the machine",
        code("memory_limit_bytes"),
        f"at 95 % idle connections are closed, at 98 % {_OVERLOADED}",
    ),
    ("requests a second of a principal", "none", "`[limits]` of the credentials", _problem(ProblemType.RATE_LIMITED)),
    ("viewers of a router's events", *_fixed(MAX_VIEWERS), _problem(ProblemType.TOO_MANY_VIEWERS)),
)

_KEPT: Sequence[Row] = (
    (
        "older versions that a node keeps open",
        *_fixed(
            f"{MAX_PINNED_VIEWS} of its tasks, {_size(MAX_PINNED_BYTES)} of memory, "
            f"{_size(MAX_PINNED_DISK_BYTES)} of files"
        ),
        "the one that was read the longest ago goes first; it is opened again when it is asked for",
    ),
    ("an older version without a reader", *_fixed("30 s"), "it is opened again when it is asked for"),
    (
        "leases that a node keeps",
        *_fixed(f"{MAX_LEASES:,}, of {MAX_LEASED_VERSIONS} versions"),
        f"{_OVERLOADED} with `Retry-After`",
    ),
    ("a lease without use (`ttl_s`)", *_fixed(f"{MAX_TTL_S} s"), "it ends; its token is read all the same"),
    (
        "older versions that can be read at all",
        "100 batches",
        "`spark.sql.streaming.minBatchesToRetain` of the query; none before an offline repartition",
        _problem(ProblemType.VERSION_GONE),
    ),
    (
        "changes in memory since a snapshot, of a store partition",
        *_set("overlay_max_bytes", "bytes"),
        "they go to a file",
    ),
    ("a file of a checkpoint's metadata", *_fixed(_size(MAX_LOG_BYTES)), "the file is refused by its name"),
    (
        "series by partition in `/metrics`, in a process",
        *_set("metrics_max_partitions"),
        "the rest counts by store alone",
    ),
    ("series of an hour at a router", *_fixed(MAX_SERIES), "partitions without room have none"),
)

_TIMES: Sequence[Row] = (
    ("headers of a request", *_set("header_timeout_ms", "ms"), _problem(ProblemType.REQUEST_TIMEOUT)),
    (
        "a body of which nothing comes",
        *_set("body_timeout_ms", "ms"),
        f"{_problem(ProblemType.REQUEST_TIMEOUT)}; later it has to come at 500 bytes a second",
    ),
    ("a client that reads nothing of its answer", *_set("unread_timeout_ms", "ms"), "the connection is closed"),
    ("a connection of a reader without a request", *_set("keep_alive_timeout_ms", "ms"), "the connection is closed"),
    ("an end that nobody confirmed", *_set("end_expiry_ms", "ms"), "lag is unknown"),
    ("a node that is gone keeps its place", *_set("rebalance_delay_ms", "ms"), "its replicas are restored elsewhere"),
)

_SERVICES: Sequence[Row] = (
    (
        "nodes that no assignment names",
        *_fixed(
            f"{MIN_STRANGERS}, or {STRANGERS_PER_KNOWN_NODE} for each node that one does name; "
            f"{MAX_NODES:,} without an assignment"
        ),
        "more are not heard (`stranger`)",
    ),
    ("tasks of an assignment", *_fixed(MAX_TASKS), "it is left out (`bad-message`)"),
    ("stores, partitions of one query", *_fixed(f"{MAX_STORES:,}, {MAX_PARTITIONS:,}"), "the catalogue is left out"),
    ("a message on the bus", *_fixed(_size(MAX_MESSAGE_BYTES)), "it is left out (`bad-message`)"),
    (
        "terms, epochs, ends, sequences",
        *_fixed("2^48, and 2^24 above what is known (2^47 while nothing is)"),
        "the message is left out",
    ),
    ("keys, issuers in a file of credentials", *_fixed(f"{MAX_KEYS:,}, {MAX_ISSUERS}"), "the file is refused"),
    ("origins of `cors_origins`", *_fixed(MAX_ORIGINS), "refused at the start"),
)

_PARTS: Sequence[tuple[str, Sequence[Row]]] = (
    ("Of a request", _REQUESTS),
    ("Of an answer", _ANSWERS),
    ("At once", _AT_ONCE),
    ("What is kept", _KEPT),
    ("Times", _TIMES),
    ("Between services", _SERVICES),
)


def limits_page() -> str:
    """Render all limits, in groups."""
    return page(
        "# Limits",
        GENERATED.format(source="the constants and settings of the services"),
        "Nothing here is lost in silence: what is beyond a limit is refused with a [problem](problems.md), cut into "
        "pages, or counted. A limit without a [setting](settings.md) is fixed. [SQL](../sql.md#limits) and the "
        "[aligned source](../aligned-source.md#all-options) have their own; how large a cluster may get is measured "
        "in [scaling](../scaling.md).",
        *_parts(),
    )


def _parts() -> Iterable[str]:
    for title, rows in _PARTS:
        yield f"## {title}"
        yield table(_HEAD, rows)
