"""The exports of a statement, when it is stopped."""

from __future__ import annotations

import threading

import pytest

from understudy import Client
from understudy.client.core.exchange import Failure, FailureKind, Opened, Reply, Send
from understudy.sql.reads import MEDIA_TYPE, ExportedParts, PartitionRead
from understudy_shared.base.errors import UnderstudyError


class SilentStream:
    """A stream on which nothing comes until it is closed."""

    def __init__(self) -> None:
        self.is_read, self._is_closed = threading.Event(), threading.Event()

    def receive(self, deadline_s: float) -> bytes | Failure:
        self.is_read.set()
        self._is_closed.wait()
        return Failure(FailureKind.CUT, "it was closed")

    def close(self) -> None:
        self._is_closed.set()


class SilentServer:
    """A transport whose streams are one that is silent."""

    def __init__(self) -> None:
        self.stream = SilentStream()

    def exchange(self, send: Send) -> Reply | Failure:
        raise NotImplementedError

    def open(self, send: Send) -> Opened | Reply | Failure:
        return Opened(MEDIA_TYPE, {}, self.stream)

    def close(self) -> None:
        pass


def test_who_waits_for_rows_gets_an_error_when_the_exports_are_closed() -> None:
    server = SilentServer()
    with Client("http://127.0.0.1:1", transport=server) as client:
        exported = ExportedParts(client.store("s"), {}, [PartitionRead(0), PartitionRead(1)], print)
        said: list[UnderstudyError] = []

        def take() -> None:
            with pytest.raises(UnderstudyError) as caught:
                list(exported)
            said.append(caught.value)

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        assert server.stream.is_read.wait(60)
        exported.close()
        taking.join(60)
        assert [str(each.what) for each in said] == ["the exports were closed"]
