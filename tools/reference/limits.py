"""The page of limits: each with its value, as the code has it, the setting that changes it, and what is beyond it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tools.reference.markdown import GENERATED, code, entries, page

from understudy_node.checkpoint.logs import MAX_LOG_BYTES
from understudy_node.questions.changes import MAX_HISTORY_BYTES
from understudy_node.questions.lookup.reads import MAX_BATCH_BYTES
from understudy_node.replica.past_versions import MAX_RUNNING
from understudy_node.replica.pinned_versions import (
    MAX_LEASED_VERSIONS,
    MAX_LEASES,
    MAX_PINNED_BYTES,
    MAX_PINNED_DISK_BYTES,
    MAX_PINNED_VIEWS,
)
from understudy_node.settings import ClusterNodeSettings
from understudy_node.stores.finder import MAX_SORTED
from understudy_router.settings import RouterSettings
from understudy_shared.auth.credentials import MAX_ISSUERS, MAX_KEYS
from understudy_shared.auth.presented import MAX_TOKEN_BYTES
from understudy_shared.base.texts import size_text
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES, MAX_PARTITIONS, MAX_STORES, MAX_TASKS
from understudy_shared.cluster.node_calls import MAX_IN_FLIGHT
from understudy_shared.cluster.view import MAX_NODES, MIN_STRANGERS, STRANGERS_PER_KNOWN_NODE
from understudy_shared.http.edge import MAX_BODY_BYTES
from understudy_shared.http.origins import MAX_ORIGINS
from understudy_shared.http.problems import ProblemType
from understudy_shared.http.target import MAX_TARGET_BYTES
from understudy_shared.page.feed import MAX_VIEWERS
from understudy_shared.page.series import MAX_SERIES
from understudy_shared.questions.changes.service import MAX_VERSIONS
from understudy_shared.questions.scan.question import MAX_SCAN_BYTES, MAX_SCAN_ROWS
from understudy_shared.questions.scan.where import MAX_TERMS, MAX_WHERE_BYTES
from understudy_shared.questions.several import MAX_READS
from understudy_shared.questions.watch.choice import MAX_REMEMBERED
from understudy_shared.questions.watch.prefix_watches import (
    MAX_BEGINNING,
    MAX_PREFIX_WATCHES,
    MAX_PRESENT,
    MAX_PRESENT_BYTES,
)
from understudy_shared.questions.watch.streams import MAX_WATCHED_KEYS
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, MAX_PAGE_ELEMENTS, MAX_WAIT_MS
from understudy_shared.reads.tokens import MAX_TTL_S
from understudy_shared.server.connection_limits import MAX_HEADER_BYTES
from understudy_shared.server.made_files import (
    HELD_SHARE,
    LIVING_SHARE,
    MAX_FILE_BYTES,
    MAX_HELD_BYTES,
    MAX_HELD_FILES,
    MAX_LIVING_BYTES,
)

Row = tuple[str, str, str]
"""A limit: of what, how much, and what is beyond it."""

_UNIT = re.compile(r"(?<=\d)(?=[KMGT]iB)")


def _size(size_bytes: int) -> str:
    """Return a size as prose has it: `64 KiB`."""
    return _UNIT.sub(" ", size_text(size_bytes))


def _problem(problem: ProblemType) -> str:
    return f"{problem.status} {code(problem.slug)}"


_TOO_LARGE = _problem(ProblemType.TOO_LARGE)
_OVERLOADED = _problem(ProblemType.OVERLOADED)
_BAD_BOUND = _problem(ProblemType.BAD_BOUND)

_REQUESTS: Sequence[Row] = (
    ("keys of a batch, of a watch, or of a read of several stores", f"{MAX_BATCH_KEYS:,}", _TOO_LARGE),
    ("stores of one read at one version", f"{MAX_READS}", _TOO_LARGE),
    ("a key, as Spark encodes it", "`max_key_bytes`", f"{_TOO_LARGE}, in a batch of that key alone"),
    ("a body", _size(MAX_BODY_BYTES), _TOO_LARGE),
    (
        "a path, a query, as sent",
        f"{_size(MAX_TARGET_BYTES)} each",
        f"{_TOO_LARGE} or {_problem(ProblemType.TARGET_TOO_LONG)}: send long keys in a batch",
    ),
    ("headers", _size(MAX_HEADER_BYTES), _problem(ProblemType.HEADERS_TOO_LARGE)),
    ("waiting for a version (`wait_ms`)", f"{MAX_WAIT_MS:,} ms", _BAD_BOUND),
    ("comparisons of a scan", f"{MAX_TERMS}, {_size(MAX_WHERE_BYTES)}", _BAD_BOUND),
    ("versions of a read of changes", f"{MAX_VERSIONS:,}", _BAD_BOUND),
    (
        "keys with the prefix of a watch, when it begins",
        f"{MAX_PRESENT:,}, {_size(MAX_PRESENT_BYTES)}",
        f"{_TOO_LARGE}. Later ones have no limit; of {MAX_REMEMBERED:,} it is remembered what was sent",
    ),
    ("a token of an issuer", _size(MAX_TOKEN_BYTES), _problem(ProblemType.UNAUTHENTICATED)),
)

_ANSWERS: Sequence[Row] = (
    ("elements of a key in one answer", f"{MAX_PAGE_ELEMENTS:,}, 1 MiB", "the next page: `next_cursor`"),
    ("sessions or timers of a key, which are sorted", f"{MAX_SORTED:,}", f"{_TOO_LARGE}, in a batch of that key"),
    (
        "rows of a page of a scan",
        f"{MAX_SCAN_ROWS:,}, {_size(MAX_SCAN_BYTES)}, 200 ms",
        "the next page, which may be empty: go on until `next_cursor` is null",
    ),
    ("a page in an order, of windows, or of many passed-over keys", "3 s", _problem(ProblemType.DEADLINE)),
    (
        "results of a batch of keys that have many, at a node",
        _size(MAX_BATCH_BYTES),
        f"{_TOO_LARGE} of the keys behind",
    ),
    ("a page of a history", f"2 s, {_size(MAX_HISTORY_BYTES)}", "the next page: `next_from`"),
)

_AT_ONCE: Sequence[Row] = (
    (
        "[files of stores](../api.md#a-store-is-a-url) that are made before they are sent",
        (
            f"{MAX_FILE_BYTES >> 20} MiB each; of a process {MAX_HELD_FILES} files and {MAX_HELD_BYTES >> 20} MiB, or "
            f"1/{HELD_SHARE} of `memory_limit_bytes`, are kept; {MAX_LIVING_BYTES >> 20} MiB with those that readers "
            f"take, or 1/{LIVING_SHARE}, but two files always"
        ),
        f"{_TOO_LARGE}; those not used for long are made anew; {_OVERLOADED}",
    ),
    ("histories, at a node", f"{MAX_RUNNING}", _OVERLOADED),
    ("keys of all watches of a process", f"{MAX_WATCHED_KEYS:,}", _OVERLOADED),
    (
        "watches of a prefix, in each process",
        f"{MAX_PREFIX_WATCHES}",
        f"{_OVERLOADED}. Each counts as {MAX_PRESENT:,} keys. {MAX_BEGINNING} begin at a time; the others wait",
    ),
    (
        "calls of one kind from a router to nodes, for each application",
        f"{MAX_IN_FLIGHT}",
        "they wait for a place until their deadline. Scans, exports, leases, watches and heartbeats are kinds",
    ),
    ("requests a second of a principal", "`[limits]` of the credentials", _problem(ProblemType.RATE_LIMITED)),
    ("viewers of a router's events", f"{MAX_VIEWERS}", _problem(ProblemType.TOO_MANY_VIEWERS)),
)

_KEPT: Sequence[Row] = (
    (
        "older versions that a node keeps open",
        (
            f"{MAX_PINNED_VIEWS} of its tasks, {_size(MAX_PINNED_BYTES)} of memory, "
            f"{_size(MAX_PINNED_DISK_BYTES)} of files, each 30 s without a reader"
        ),
        "the one that was read the longest ago goes first; it is opened again when it is asked for",
    ),
    (
        "leases that a node keeps",
        f"{MAX_LEASES:,}, of {MAX_LEASED_VERSIONS} versions",
        f"{_OVERLOADED} with `Retry-After`",
    ),
    ("a lease without use (`ttl_s`)", f"{MAX_TTL_S} s", "it ends; its token is read all the same"),
    (
        "older versions that can be read at all",
        "100 batches, by `spark.sql.streaming.minBatchesToRetain` of the query; none before an offline repartition",
        _problem(ProblemType.VERSION_GONE),
    ),
    ("a file of a checkpoint's metadata", _size(MAX_LOG_BYTES), "the file is refused by its name"),
    ("series of an hour at a router", f"{MAX_SERIES:,}", "partitions without room have none"),
)

_SERVICES: Sequence[Row] = (
    (
        "nodes that no assignment names",
        (
            f"{MIN_STRANGERS}, or {STRANGERS_PER_KNOWN_NODE} for each node that one does name; "
            f"{MAX_NODES:,} without an assignment"
        ),
        "more are not heard (`stranger`)",
    ),
    ("tasks of an assignment", f"{MAX_TASKS:,}", "it is left out (`bad-message`)"),
    ("stores, partitions of one query", f"{MAX_STORES:,}, {MAX_PARTITIONS:,}", "the catalogue is left out"),
    ("a message on the bus", _size(MAX_MESSAGE_BYTES), "it is left out (`bad-message`)"),
    (
        "terms, epochs, ends, sequences",
        "2^48, and 2^24 above what is known (2^47 while nothing is)",
        "the message is left out",
    ),
    ("keys, issuers in a file of credentials", f"{MAX_KEYS:,}, {MAX_ISSUERS}", "the file is refused"),
    ("origins of `cors_origins`", f"{MAX_ORIGINS}", "refused at the start"),
)

_PARTS: Sequence[tuple[str, Sequence[Row]]] = (
    ("Of a request", _REQUESTS),
    ("Of an answer", _ANSWERS),
    ("At once", _AT_ONCE),
    ("What is kept", _KEPT),
    ("Between services", _SERVICES),
)

_SETTINGS = (
    "max_in_flight", "max_scans_in_flight", "max_exports_in_flight", "max_watchers", "max_key_bytes",
    "max_connections", "memory_limit_bytes", "header_timeout_ms", "body_timeout_ms", "unread_timeout_ms",
    "keep_alive_timeout_ms", "end_expiry_ms", "rebalance_delay_ms", "overlay_max_bytes", "metrics_max_partitions",
    "hop_timeout_ms", "deadline_ms",
)  # fmt: skip
"""Limits that operators set."""


def limits_page() -> str:
    """Render all limits, in groups."""
    assert set(_SETTINGS) <= ClusterNodeSettings.model_fields.keys() | RouterSettings.model_fields.keys()
    return page(
        "# Limits",
        GENERATED.format(source="the constants and settings of the services"),
        "Nothing here is lost in silence: what is beyond a limit is refused with a [problem](problems.md), cut into "
        "pages, or counted. These limits are fixed. [Settings](settings.md) are "
        f"{', '.join(map(code, _SETTINGS))}. [SQL](../sql.md#limits) and the "
        "[aligned source](../aligned-source.md#all-options) have their own; how large a cluster may get is measured "
        "in [scaling](../scaling.md).",
        *_parts(),
    )


def _parts() -> Iterable[str]:
    for title, rows in _PARTS:
        yield f"## {title}"
        yield entries((of, f"{much}; then {beyond}") for of, much, beyond in rows)
