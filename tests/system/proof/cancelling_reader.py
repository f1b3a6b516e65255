"""A reader that cancels, in a process of its own: `python -m tests.system.proof.cancelling_reader PORTS APPLICATION
SEED`, the ports as JSON.

At each port it opens many reads of every kind at once, again and again, and closes each connection after some turns of
its loop, after some milliseconds, within the request, or within the answer. It stays below the limits of what a service
answers at once, so that all others have to be answered as ever. A line on standard input is answered by the counts of
what it has cancelled; the end of the input ends it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from tests.system.proof.every_read import END_OF_HEAD, every_read
from tests.system.proof.http_talk import HOST

IN_A_ROUND: Final[Mapping[str, int]] = {
    "lookup": 12,
    "batch": 4,
    "history": 1,
    "read": 4,
    "lease": 2,
    "scan": 2,
    "watch": 24,
    "watch of a prefix": 16,
}
"""How many of each kind are open at once. Others have places left, even where the last round still leaves."""

ONE_OF: Final = ("export", "changes")
"""These have two places together. Each so many rounds one of them is made, because others need one, too."""

EXPORT_EACH: Final = 3

MOMENTS: Final = ("head", "body", "turns", "milliseconds", "answer")
"""Where a read is cancelled: within the head or the body of its request, after turns or milliseconds, within its
answer.
"""

TURNS: Final = (0, 1, 2, 4, 8, 16, 40)
MILLISECONDS: Final = (1, 3, 10, 40, 150, 400)
FIRST_BYTES: Final = (1, 64, 4096)
PAUSE_S: Final = 0.2
LIMIT_S: Final = 2.0


class CancellingReader:
    """The reader at one port."""

    def __init__(self, port: int, application: str, chance: random.Random, cancelled: Counter[str]) -> None:
        self._port, self._application, self._chance, self._cancelled = port, application, chance, cancelled

    async def run(self) -> None:
        """Open and cancel until this is cancelled itself."""
        rounds = 0
        while True:
            rounds += 1
            kinds = [kind for kind, number in IN_A_ROUND.items() for _ in range(number)]
            if rounds % EXPORT_EACH == 0:
                kinds.append(self._chance.choice(ONE_OF))
            self._chance.shuffle(kinds)
            with suppress(OSError, LookupError, TimeoutError):
                requests = await every_read(self._port, self._application)
                await asyncio.gather(*(self._cancel(kind, requests[kind]) for kind in kinds))
            await asyncio.sleep(PAUSE_S)

    async def _cancel(self, kind: str, request: bytes) -> None:
        moment, writer = self._chance.choice(MOMENTS), None
        try:
            async with asyncio.timeout(LIMIT_S):
                reader, writer = await asyncio.open_connection(HOST, self._port)
                writer.write(request[: self._sent(moment, request)])
                if moment == "milliseconds":
                    await asyncio.sleep(self._chance.choice(MILLISECONDS) / 1000)
                elif moment == "answer":
                    await reader.read(self._chance.choice(FIRST_BYTES))
                else:
                    for _ in range(self._chance.choice(TURNS)):
                        await asyncio.sleep(0)
        except (OSError, TimeoutError):
            return
        finally:
            if writer is not None:
                writer.transport.abort()
        self._cancelled[kind] += 1
        self._cancelled[f"in {moment}"] += 1

    def _sent(self, moment: str, request: bytes) -> int:
        """Return how many bytes of the request are sent."""
        head = request.index(END_OF_HEAD) + len(END_OF_HEAD)
        if moment == "head":
            return self._chance.randrange(head)
        if moment == "body" and len(request) > head:
            return self._chance.randrange(head, len(request))
        return len(request)


async def main() -> None:
    """Cancel at all ports until standard input ends."""
    ports, application, seed = sys.argv[1:]
    chance, cancelled = random.Random(int(seed)), Counter[str]()
    readers = [CancellingReader(port, application, chance, cancelled).run() for port in json.loads(ports)]
    at_work = asyncio.gather(*readers)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while await orders.readline():
        if at_work.done():
            at_work.result()
        sys.stdout.write(json.dumps(cancelled) + "\n")
        sys.stdout.flush()
    at_work.cancel()
    with suppress(asyncio.CancelledError):
        await at_work
    sys.stderr.write(f"cancelled {json.dumps(cancelled)}\n")


if __name__ == "__main__":
    asyncio.run(main())
