"""Servers that answer badly, byte by byte: for tests of clients that must not trust who answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Behaviour = Callable[[socket.socket, bytes, threading.Event], None]
"""What a server does with a connection on which a request came, until the event of its end."""


@dataclass
class BadServer:
    """A server on loopback, and the requests that it read."""

    url: str
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0


@contextmanager
def bad_server(behave: Behaviour) -> Iterator[BadServer]:
    ended = threading.Event()
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = BadServer(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def answer(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.settimeout(30)
                while not ended.is_set() and (request := _request(connection)):
                    server.requests.append(request)
                    behave(connection, request, ended)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if ended.is_set():
                    connection.close()
                    return
                server.connections += 1
                threads.append(threading.Thread(target=answer, args=(connection,)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield server
        finally:
            ended.set()
            socket.create_connection(listener.getsockname()).close()
            accepting.join()
            for thread in threads:
                thread.join()


def sending(*parts: bytes, then_closes: bool = False) -> Behaviour:
    """Send these bytes, each part by itself."""

    def behave(connection: socket.socket, _: bytes, __: threading.Event) -> None:
        for part in parts:
            connection.sendall(part)
        if then_closes:
            connection.close()

    return behave


def dripping(start: bytes, drop: bytes = b" ", every_s: float = 0.05) -> Behaviour:
    """Send the start, and then a byte from time to time, without end."""

    def behave(connection: socket.socket, _: bytes, ended: threading.Event) -> None:
        connection.sendall(start)
        while not ended.wait(every_s):
            connection.sendall(drop)

    return behave


def silent(_: socket.socket, __: bytes, ended: threading.Event) -> None:
    """Say nothing until the end."""
    ended.wait(30)


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
