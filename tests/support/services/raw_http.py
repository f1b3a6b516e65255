"""Clients that break every custom, over real sockets: bytes as they are, answers read late or never."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Self

LIMIT_S = 20.0
GET_LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


class RawClient:
    """One connection, bytes in and bytes out."""

    def __init__(self, port: int, *, receive_buffer_bytes: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(("127.0.0.1", port))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def push(self, data: bytes) -> int:
        """Send as much as the other side takes; returns how many bytes that were. Its leaving ends it, too."""
        self.socket.settimeout(0.3)
        sent = 0
        try:
            while sent < len(data):
                sent += self.socket.send(data[sent : sent + 262_144])
        except OSError:  # it reads no more, or closed
            pass
        finally:
            self.socket.settimeout(LIMIT_S)
        return sent

    def reply(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers by lower-case name, body."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return int(status_line.split()[1]), headers, body

    def is_closed(self) -> bool:
        """Whether the other side ends the connection within the limit; what it still sends is dropped."""
        try:
            while self.socket.recv(65_536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def _more(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionResetError("closed before an answer")
        self._read += data


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process without pages of files."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * 4096
