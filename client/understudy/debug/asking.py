"""Asks one service for its documents, each within a size and a time. What goes wrong is a line of the bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import monotonic
from typing import NamedTuple

import orjson

from understudy.calls.http_client import Server
from understudy.client.core.exchange import Failure, Opened, Reply
from understudy.debug.redaction import Redaction
from understudy_shared.base.printable import printable

MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
"""Limit on one document: ten times the lag of 10,000 replicas."""

SERVICE_LIMIT_S = 60.0
"""Time for all documents of one service."""

DOCUMENTS = {
    "livez.json": "/livez",
    "readyz.json": "/readyz",
    "health.json": "/admin/v1/health",
    "lag.json": "/admin/v1/lag",
    "nodes.json": "/admin/v1/nodes",
    "overview.json": "/admin/v1/overview",
    "history.json": "/admin/v1/history",
    "snapshots.json": "/admin/v1/snapshots",
    "stores.json": "/v1/stores",
    "applications.json": "/v1/applications",
    "metrics.txt": "/metrics",
    "release.json": "/openapi.json",
}
"""Paths by the files that they become. `lag.json` and `overview.json` have the events. Of the API's document only
what says the release is kept. A node has no nodes, overview and history; a fleet has them for each application.
"""


class Entry(NamedTuple):
    """A file of the bundle, or the reason why it is missing. `note` is empty where the file is whole."""

    file: str
    source: str
    content: bytes | None
    note: str
    took_ms: int = 0


def entries_of(server: Server, folder: str, redaction: Redaction, timeout_s: float) -> Iterator[Entry]:
    """Yield the entry of each document, in order. A service that does not answer the first one is asked no more."""
    until_s = monotonic() + SERVICE_LIMIT_S
    for name, path in DOCUMENTS.items():
        began_s = monotonic()
        left_s = min(timeout_s, until_s - began_s)
        if left_s > 0:
            content, note = _fetched(server, path, left_s)
        else:
            content, note = None, f"not asked: the {SERVICE_LIMIT_S:g} s for this service were over"
        took_ms = round((monotonic() - began_s) * 1000)
        if content is not None:
            content, note = _cleaned(name, content, note, redaction)
        yield Entry(f"{folder}/{name}", server.url + path, content, redaction.text(note), took_ms)
        if content is None and name == "livez.json":
            return


def _fetched(server: Server, path: str, limit_s: float) -> tuple[bytes | None, str]:
    """Return what came of a path, and a note about what is wrong with it."""
    deadline_s = monotonic() + limit_s
    found = server.opened(path, deadline_s)
    if isinstance(found, Failure):
        return None, f"no answer: {printable(found.why)}"
    if not isinstance(found, Opened):
        return _refused(found)
    parts, size, note = [], 0, ""
    while size < MAX_DOCUMENT_BYTES and not note:
        part = found.stream.receive(deadline_s)
        if isinstance(part, Failure):
            note = f"cut after {size} bytes: {printable(part.why)}"
        elif not part:
            break
        else:
            parts.append(bytes(part))
            size += len(part)
    else:
        note = note or f"cut at {MAX_DOCUMENT_BYTES} bytes"
    found.stream.close()
    if "html" in found.content_type:
        return None, "it answered HTML: this is not an Understudy service, or a sign-in page stands in front of it"
    return b"".join(parts)[:MAX_DOCUMENT_BYTES], note


def _refused(reply: Reply) -> tuple[bytes | None, str]:
    """Return the JSON of a reply with another status than 200, and that status with the words of a problem.

    A path that the service lacks, as a node lacks that of nodes, is not worth a note.
    """
    if "json" not in reply.content_type or len(reply.body) > MAX_DOCUMENT_BYTES:
        return None, f"status {reply.status}"
    try:
        problem = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None, f"status {reply.status}"
    if not isinstance(problem, dict):
        return reply.body, f"status {reply.status}"
    if problem.get("type") == "unknown-path":
        return None, ""
    words = str(problem.get("detail") or problem.get("title") or problem.get("reasons") or "no reason given")
    return reply.body, f"status {reply.status}: {printable(words)}"


def _cleaned(name: str, content: bytes, note: str, redaction: Redaction) -> tuple[bytes | None, str]:
    """Return a document without secrets. JSON that cannot be parsed is not kept: its strings would be guessed at."""
    if not name.endswith(".json"):
        return redaction.text(content.decode(errors="replace")).encode(), note
    try:
        document = orjson.loads(content)
        if name == "release.json" and isinstance(document, dict):
            document = document.get("info")
        return orjson.dumps(redaction.value(document), option=orjson.OPT_INDENT_2), note
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):  # the last two: it is nested too deeply
        return None, note or "what it answered is not JSON: this is not an Understudy service"


def folder_of(number: int, url: str) -> str:
    """Return the name of a service's folder (pure)."""
    place = re.sub(r"[^A-Za-z0-9.-]+", "_", url.partition("://")[2])[:80].strip("_")
    return f"services/{number:02}-{place}"
