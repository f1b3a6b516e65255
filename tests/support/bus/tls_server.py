"""Redis behind TLS: a proxy that ends it before any server, and a server that speaks it itself where there is one."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.bus.servers import DEBIANS_SERVER, variables_for
from tests.support.services.certificates import Files, Signer
from tests.support.spark.queries import wait_until

from understudy_shared.base.processes import tied_command
from understudy_shared.base.sockets import free_port

LIMIT_S = 20.0


@contextmanager
def tls_front(server: RedisServer, shown: Files, *, clients_of: Signer | None = None) -> Iterator[int]:
    """The port of a proxy that ends TLS before a server on a unix socket. It asks for certificates of `clients_of`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*shown)
    if clients_of is not None:
        context.load_verify_locations(clients_of.file)
        context.verify_mode = ssl.CERT_REQUIRED
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tls-front")
    thread.start()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_unix_connection(str(server._socket))
        await asyncio.gather(_pump(reader, forth), _pump(back, writer))

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)

    async def end() -> None:
        front.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for _ in range(5):  # transports close their sockets in later turns
            await asyncio.sleep(0)

    front = asyncio.run_coroutine_threadsafe(begin(), loop).result(LIMIT_S)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.transport.abort()


@contextmanager
def tls_server(authority: Signer, shown: Files, *, asks_for_one: bool = False) -> Iterator[int]:
    """The port of a server that speaks TLS itself. Skips the test where no program on this machine does."""
    program = _program()
    port = free_port()
    words = ["--port", 0, "--tls-port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    words += ["--tls-cert-file", shown.certificate, "--tls-key-file", shown.key, "--tls-ca-cert-file", authority.file]
    words += ["--tls-auth-clients", "yes" if asks_for_one else "no"]
    with TemporaryDirectory(prefix="redis-tls-") as folder:
        process = subprocess.Popen(
            tied_command(program, *map(str, words)),
            cwd=folder,
            env=variables_for(program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(lambda: _is_open(port) or process.poll() is not None, what="a server with TLS", limit_s=LIMIT_S)
            if process.poll() is not None:
                pytest.skip(f"{program} does not speak TLS")
            yield port
        finally:
            process.kill()
            process.wait(LIMIT_S)


def _program() -> str:
    for found in (str(DEBIANS_SERVER), shutil.which("redis-server"), shutil.which("valkey-server")):
        if found is not None and os.access(found, os.X_OK):
            return found
    pytest.skip("no redis-server or valkey-server that speaks TLS")


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
