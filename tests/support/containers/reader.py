"""Reads through two routers until SIGTERM, and says as JSON how many reads were answered and which were not.

    python -m tests.support.containers.reader FILE URL URL

A reader with two addresses asks the other one, once, when a connection is refused or breaks. It repeats nothing else: a
late answer and every error count as failed, also of a router that has only just come. A read is answered by 200, or by
404 with `found: false` for a key that was never found before; a key that is lost counts as failed. The counts are
written into FILE twice a second, and at the end.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 10.0
EVERY_S = 0.02
STORE = "aircraft"
KEYS = ("N14228", "N24211", "N619AA", "N804JB", "N668DN", "N39463", "N516JB", "N829AS", "N593JB", "N3ALAA")


def read(url: str, key: str) -> str:
    """How one router answers: `found`, `absent`, `broken` for a connection, or what is no answer."""
    where = urlsplit(url)
    connection = HTTPConnection(str(where.hostname), where.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"/v1/stores/{STORE}/keys/{key}")
        reply = connection.getresponse()
        body = reply.read()
    except TimeoutError:
        return "timeout"
    except (OSError, HTTPException):
        return "broken"
    finally:
        connection.close()
    if reply.status == 200:
        return "found"
    if reply.status == 404 and json.loads(body).get("found") is False:
        return "absent"
    return f"{reply.status} {body.decode(errors='replace')[:300]}"


def say(path: Path, counts: Counter[str]) -> None:
    """Write the counts, whole or not at all."""
    arriving = path.with_suffix(".arriving")
    arriving.write_text(json.dumps(counts))
    arriving.replace(path)


def main() -> int:
    """Read until the signal."""
    path, *urls = sys.argv[1:]
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    going, turn, said_s = [True], 0, 0.0
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    while going:
        key = KEYS[turn % len(KEYS)]
        outcome = "broken"
        for attempt in range(len(urls)):
            outcome = read(urls[(turn + attempt) % len(urls)], key)
            if outcome != "broken":
                break
        if outcome == "found":
            seen.add(key)
        counts["lost" if outcome == "absent" and key in seen else outcome] += 1
        turn += 1
        if time.monotonic() - said_s > 0.5:
            say(Path(path), counts)
            said_s = time.monotonic()
        time.sleep(EVERY_S)
    say(Path(path), counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
