"""The supervisor of worker processes: it judges their answers, their silence and their end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.services.certificates import Signer

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.ports import free_port
from understudy_shared.base.words import HostInfo
from understudy_shared.processes.liveness import PAUSED_AFTER_S, Liveness, SilenceTimer, liveness_of
from understudy_shared.processes.supervisor import WorkerOrder, WorkerSupervisor, _how_it_ended
from understudy_shared.processes.worker import refusal, refused

HOST = "127.0.0.1"


@asynccontextmanager
async def answering(said: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers every request with these bytes; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /livez HTTP/1.1\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("said", "liveness"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", Liveness.ALIVE),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Liveness.DEAD),
        (b"HTTP/1.1 408 Request Timeout\r\n\r\n", Liveness.SILENT),
        (b"", Liveness.SILENT),
        (b"x" * 1_000_000, Liveness.SILENT),
    ],
)
async def test_a_worker_says_that_it_is_alive_or_cannot_go_on_or_is_silent(said: bytes, liveness: Liveness) -> None:
    async with answering(said) as port:
        assert await liveness_of(HostInfo(HOST, port), is_tls=False) is liveness
    assert await liveness_of(HostInfo(HOST, free_port()), is_tls=False) is Liveness.SILENT


async def test_a_worker_that_speaks_tls_is_asked_by_tls(tmp_path: Path) -> None:
    files = Signer(tmp_path).issue("router")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", tls) as port:
        assert await liveness_of(HostInfo(HOST, port), is_tls=True) is Liveness.ALIVE
        assert await liveness_of(HostInfo(HOST, port), is_tls=False) is Liveness.SILENT


def test_silence_is_counted_from_the_last_answer_and_anew_after_a_pause_of_the_supervisor() -> None:
    silence = SilenceTimer(100.0)
    assert silence.after(Liveness.ALIVE, 101.0) == 0
    assert [silence.after(Liveness.SILENT, now_s) for now_s in (107.0, 113.0)] == [6.0, 12.0]
    resumed_s = 113.0 + PAUSED_AFTER_S + 1
    assert [silence.after(Liveness.SILENT, now_s) for now_s in (resumed_s, resumed_s + 6)] == [0.0, 6.0]


def test_what_is_on_stdout_beside_a_refusal_ends_nothing() -> None:
    error = SettingsError("it will not", where="here", fix="Take it away")
    assert str(refused(b"words of a library\n" + refusal(error))) == str(error)
    for found in (b"", b"words", b"3", b"{}", b'{"of_settings": true, "words": 3}', refusal(error)[:-3]):
        assert refused(found) is None


def test_the_end_by_any_signal_has_words() -> None:
    assert [_how_it_ended(code) for code in (7, -9, -40)] == [
        "ended with exit code 7", "was killed by SIGKILL", "was killed by signal 40",
    ]  # fmt: skip


def test_settings_are_not_shown() -> None:
    orders = [WorkerOrder("", {"host": HOST, "redis": "redis://:secret@h"}, port) for port in (7001, 7002)]
    supervisor = WorkerSupervisor(orders, host=HostInfo(HOST, 7000), delay_ms=0)
    assert supervisor.own_hosts == [HostInfo(HOST, 7001), HostInfo(HOST, 7002)]
    assert "7002" in repr(supervisor)
    assert "secret" not in repr(supervisor)
