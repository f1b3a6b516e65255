"""Readers who look keys up all the while, as any cluster has them. What comes of it the routers count.

They wait for each answer, and none of them ends by a fault: a read that gets no answer is a read.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

from tests.system.proof.keys import STORE, choose_key

PER_ROUTER = 40
"""When no node answers, a read takes seconds. So many then want more retries than a quiet router may send."""

PAUSE_S = 2
TIMEOUT_S = 10
MAX_LAG = 20
"""Far above what is usual. It is there so that an unknown lag refuses them."""


@contextmanager
def readers(ports: Sequence[int], newest: Callable[[], int]) -> Iterator[None]:
    """Some at each of these routers, until the end of the block; they ask for keys of the version `newest`."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=_read, args=(port, newest, random.Random(number), ended), name=f"reader {number}")
        for number, port in enumerate(sorted([*ports] * PER_ROUTER))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _read(port: int, newest: Callable[[], int], chance: random.Random, ended: threading.Event) -> None:
    while not ended.wait(chance.uniform(0, 2 * PAUSE_S)):
        slot, word = choose_key(chance, newest())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"/v1/stores/{STORE}/keys/{quote(slot)}/{quote(word)}?max_lag={MAX_LAG}")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            continue  # no router there, or it closed the connection
        finally:
            connection.close()
