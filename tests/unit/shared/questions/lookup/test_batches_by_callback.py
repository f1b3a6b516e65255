"""A batch is answered without ASGI, except where ASGI has to decide something about it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from understudy_shared.auth.access import Access
from understudy_shared.http.edge import App
from understudy_shared.questions.front import MAX_DIRECT_BYTES, LookupsFirst
from understudy_shared.questions.lookup.batches import Batch
from understudy_shared.server.answers import Answers
from understudy_shared.server.direct import Exchange, Headers
from understudy_shared.telemetry.metrics import RequestCounts

BATCH = b"/v1/stores/s/lookup?compact=true"
PLAIN = [(b"accept-encoding", b"identity"), (b"content-type", b"application/json")]


class Lookups(LookupsFirst):
    """An application without stores."""

    def answer(self, target: bytes, exchange: Exchange) -> None: ...

    async def look_up_many(self, batch: Batch) -> bytes:
        return b""

    def has_store(self, store: str) -> bool:
        return False


def lookups() -> Lookups:
    return Lookups(cast(App, None), max_in_flight=1, requests=RequestCounts())


def is_taken(target: bytes, size_bytes: int, headers: Headers, access: Any = None) -> bool:
    answers = Answers(batches=lookups(), access=access)
    return answers.batch(target, size_bytes, headers, lambda *_: None) is not None


@pytest.mark.parametrize("target", [BATCH, b"/v1/stores/s/lookup"])
@pytest.mark.parametrize("size_bytes", [1, MAX_DIRECT_BYTES])
def test_a_batch_is_taken(target: bytes, size_bytes: int) -> None:
    assert is_taken(target, size_bytes, PLAIN)


@pytest.mark.parametrize(
    ("target", "size_bytes", "headers", "access"),
    [
        pytest.param(BATCH, MAX_DIRECT_BYTES + 1, PLAIN, None, id="large"),
        pytest.param(BATCH, 0, PLAIN, None, id="of unknown length"),
        pytest.param(BATCH, 5, [(b"accept-encoding", b"gzip")], None, id="maybe compressed"),
        pytest.param(BATCH, 5, PLAIN, Access(), id="by credential"),
        pytest.param(b"/v1/stores/s/keys", 5, PLAIN, None, id="another call"),
        pytest.param(b"/v1/stores/s/lookup#a", 5, PLAIN, None, id="a fragment"),
        pytest.param(b"/v1/applications/a/stores/s/lookup", 5, PLAIN, None, id="of an application"),
    ],
)
def test_a_batch_goes_by_asgi(target: bytes, size_bytes: int, headers: Headers, access: Any) -> None:
    assert not is_taken(target, size_bytes, headers, access)
