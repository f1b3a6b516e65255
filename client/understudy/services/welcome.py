"""The welcome of a service that is ready: the URL, the stores, and a curl to try for each (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from understudy.calls.http_client import path_segment
from understudy.terminal.reports import not_served_lines
from understudy_shared.base.texts import printable
from understudy_shared.base.words import HostInfo

MAX_EXAMPLES = 20
"""Stores for which a welcome has an example, and asks for a key that exists."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # recognised, not listened on


def url_of(host: HostInfo, *, is_tls: bool = False) -> str:
    """Return where this machine reaches a service; one that listens everywhere is reached at loopback."""
    name = _WILDCARDS.get(host.host, host.host)
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{name}]:{host.port}" if ":" in name else f"{scheme}://{name}:{host.port}"


def welcome_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    """Return the welcome of `understudy serve`; `document` is the answer of `/v1/stores`."""
    lag = _state_command(document)
    return [
        f"Serving at {url}",
        "",
        *_store_lines(url, document),
        "",
        f"Try: {url}/ in a browser; understudy stores --url {url}; {lag} --url {url}. Ctrl-C stops.",
    ]


def router_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    """Return the welcome of `understudy router`."""
    lag = _state_command(document, " --watch")
    return [
        f"Routing at {url}",
        "",
        *_store_lines(url, document),
        "",
        f"Try: {lag} --url {url}; understudy explain STORE KEY --url {url}. Ctrl-C stops.",
    ]


def _state_command(document: Mapping[str, Any], watch: str = "") -> str:
    """Return the command that shows how fresh all is: of a process of many applications, the list of them."""
    return "understudy applications list" if "unknown" in document else f"understudy lag{watch}"


def node_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    """Return the welcome of `understudy node`: it holds only a share, so readers should ask a router."""
    names = ", ".join(printable(store["store"]) for store in document["stores"]) or "no store"
    return [
        f"Node ready at {url}",
        "",
        f"  stores: {names}",
        *(f"  {line}" for line in not_served_lines(document["not_served"])),
        "",
        f"Try: {_state_command(document)} --url {url}; ask keys at a router: understudy router --help. Ctrl-C stops.",
    ]


def guarded_lines(url: str) -> list[str]:
    """Return the welcome of a service that asks for keys, when this command has no key: readers have theirs."""
    return [
        f"Ready at {url}, for those who have a key",
        "",
        f"Try: UNDERSTUDY_API_KEY_FILE=FILE understudy stores --url {url}; understudy keys makes keys. Ctrl-C stops.",
    ]


def example_target(store: Mapping[str, Any]) -> str:
    """Return a lookup of a key that exists, else of the schema's example: the path form where it is possible."""
    application = store.get("application")
    root = "/v1" if application is None else f"/v1/applications/{path_segment(application)}"
    path = f"{root}/stores/{path_segment(store['store'])}"
    existing = store.get("existing_key")
    examples = [column["example"] for column in store["key"]] if existing is None else list(existing.values())
    segments = _segments(examples)
    if segments:
        return "/".join([path, "keys", *map(path_segment, segments)])
    return f"{path}/lookup?key={quote(orjson.dumps(examples), safe='')}"


def _store_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    stores = document["stores"]
    lines = []
    for store in stores[:MAX_EXAMPLES]:
        columns = ", ".join(f"{printable(column['name'])} {column['type']}" for column in store["key"]) or "no columns"
        lines += [
            f"  {printable(store['store'])}  ({printable(store['operator'])}, {store['partitions']} partitions)",
            f"    key: {columns}",
            f"    curl '{url}{example_target(store)}'{'' if 'existing_key' in store else '  # with a key of yours'}",
        ]
    if not stores:
        lines.append("  There is no store to ask.")
    if len(stores) > MAX_EXAMPLES:
        lines.append(f"  and {len(stores) - MAX_EXAMPLES} more stores: understudy stores --url {url}")
    return lines + [f"  {line}" for line in not_served_lines(document["not_served"])]


def _segments(examples: list[Any]) -> list[str] | None:
    """Return a path segment per column, two for a window; None when a column's value does not fit into segments."""
    segments: list[str] = []
    for example in examples:
        if isinstance(example, dict) and list(example) == ["start", "end"]:
            segments += map(str, example.values())
        elif isinstance(example, str) and example:
            segments.append(example)
        elif isinstance(example, bool | int | float):
            segments.append(orjson.dumps(example).decode())
        else:
            return None
    return segments
