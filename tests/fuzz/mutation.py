"""Bad inputs out of good ones: documents with absurd values, bytes that are damaged, and both (pure, by a seed)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

EXTREMES: tuple[Any, ...] = (
    *(0, 1, -1, 2**31, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63)),
    *(0.5, 1e308, -0.0, float("nan"), float("inf"), None, True, False),
    *("", " ", "0_0", "0_1", "00_1", "999999999_999999999", "../..", "%zz", "null"),
    *("\x00", "\n", "\ud800", "\udfff", "é"),
    *("x" * 257, "x" * 5000, "\U0001f600" * 70, "us1.AAAA", "struct", '{"type":"struct","fields":[]}'),
    *([], {}, [[]], [None], ["x"] * 300, [0] * 300, {"": None}, {"x": {}}, {"a": [1, {"b": []}]}),
)
"""Values that are one beyond something, of the wrong kind, or long."""

MAX_DEPTH = 2000


def nested(depth: int) -> Any:
    """Lists or objects inside each other, closed; made as text, because Python's own writer gives up."""
    return f"@nest{depth}@"


def written(document: Any) -> bytes:
    """JSON of a document that may hold what JSON has no word for."""
    text = json.dumps(document)
    while '"@nest' in text:
        before, _, rest = text.partition('"@nest')
        depth, _, after = rest.partition('@"')
        levels = int(depth[:4]) if re.fullmatch("[0-9]+", depth[:4]) else 1  # it may have been changed
        text = before + "[" * levels + "]" * levels + after
    return text.encode()


def bad_document(seed: bytes, rng: Random) -> bytes:
    """A JSON document with one to four of its values replaced, removed, doubled, moved, wrapped or renamed."""
    document = json.loads(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holder, key = _somewhere(document, rng)
        if holder is None:
            break
        _CHANGES[rng.randrange(len(_CHANGES))](holder, key, rng)
    text = written(document)
    if rng.random() < 0.05 and text.startswith(b"{"):  # the same name twice: which one counts?
        text = b'{"format":1,"application_id":"flights","term":0,' + text[1:]
    return bad_bytes(text, rng) if rng.random() < 0.25 else text


def bad_bytes(data: bytes, rng: Random) -> bytes:
    """The same bytes with some changed, removed, doubled or put in."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(damaged) + 1)
        match rng.randrange(6):
            case 0 if at < len(damaged):
                damaged[at] = rng.randrange(256)
            case 1:
                del damaged[at:]
            case 2:
                del damaged[at : at + rng.randrange(1, 9)]
            case 3:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                damaged[at:at] = damaged[at : at + rng.randrange(1, 40)]
            case _ if at < len(damaged):
                damaged[at] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _somewhere(document: Any, rng: Random) -> tuple[Any, Any]:
    holder, key, at = None, None, document
    while isinstance(at, (dict, list)) and at:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        holder, at = at, at[key]
        if rng.random() < 0.4:
            break
    return holder, key


def _replace(holder: Any, key: Any, rng: Random) -> None:
    holder[key] = deepcopy(rng.choice(EXTREMES))


def _remove(holder: Any, key: Any, rng: Random) -> None:
    del holder[key]


def _wrap(holder: Any, key: Any, rng: Random) -> None:
    holder[key] = rng.choice(([holder[key]], {"x": holder[key]}, nested(rng.randrange(1, MAX_DEPTH))))


def _double(holder: Any, key: Any, rng: Random) -> None:
    if isinstance(holder, list):
        holder += [deepcopy(holder[key])] * rng.choice((1, 2, 300))
    else:
        holder[rng.choice(("", "x", "0_7", "n7", key + "x"))] = deepcopy(holder[key])


def _nudge(holder: Any, key: Any, rng: Random) -> None:
    value = holder[key]
    if isinstance(value, int):
        holder[key] = value + rng.choice((-1, 1, 10, 2**31, 2**53 - value))
    elif isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        holder[key] = value[:at] + str(rng.choice(EXTREMES))[:300] + value[at:]
    else:
        _replace(holder, key, rng)


def _move(holder: Any, key: Any, rng: Random) -> None:
    other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    holder[key], holder[other] = holder[other], holder[key]


_CHANGES: tuple[Callable[[Any, Any, Random], None], ...] = (
    *(_replace, _replace, _nudge, _nudge),
    *(_remove, _wrap, _double, _move),
)
