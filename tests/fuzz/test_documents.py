"""What is remembered on disk is judged like what is heard: used, or refused by type."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.fuzz.documents import ASSIGNMENT, CATALOGUE, HEARTBEAT, WIDE
from tests.fuzz.hunting import hunt, sizes
from tests.fuzz.mutation import bad_bytes, bad_document
from tests.support.bus.documents import APPLICATION

from understudy_router.cluster.watching import RouterMemory
from understudy_shared.bus.messages import Assignment, Catalogue, Heartbeat, Message
from understudy_shared.cluster.without_bus import MAGIC, Remembered

KINDS: dict[type[Message], Sequence[bytes]] = {
    Assignment: [ASSIGNMENT.encode()],
    Catalogue: [CATALOGUE.encode(), WIDE.encode()],
    Heartbeat: [HEARTBEAT.encode()],
}
ALL = [seed for seeds in KINDS.values() for seed in seeds]


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Mute the log: each refusal logs a warning."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def files(rng: Random, count: int) -> list[bytes]:
    """Files with a hash that fits, mostly: an attacker who damages a file can write that too."""
    made = []
    for _ in range(count):
        document = bad_document(rng.choice(ALL), rng)
        content = MAGIC + b" " + hashlib.sha256(document).hexdigest().encode() + b"\n" + document
        made.append(bad_bytes(content, rng) if rng.random() < 0.2 else content)
    return made


@sizes(4_000)
def test_no_remembered_file_ends_a_start(inputs: int, tmp_path: Path) -> None:
    remembered = Remembered(tmp_path, APPLICATION)

    def attempt(batch: Sequence[bytes]) -> None:
        for content in batch:
            for kind in KINDS:
                (tmp_path / f"{kind.__name__.lower()}.remembered").write_bytes(content)
                found = remembered.load(kind)
                assert found is None or isinstance(found, kind)
        asyncio.run(recall())

    async def recall() -> None:
        memory = RouterMemory(remembered)
        await memory.recall()
        await memory.flush()

    hunt("remembered", inputs, files, attempt)
