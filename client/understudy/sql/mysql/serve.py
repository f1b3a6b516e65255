"""`understudy sql --serve mysql`: the server as a process, from its options to its end by a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from pathlib import Path
from typing import Final

import click

from understudy.client.errors import UnauthenticatedError, UsageError
from understudy.sql.mysql.server import Front, Limits, Servers
from understudy_shared.auth.binding import is_loopback
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.tls.certificates import load, tls_plan
from understudy_shared.tls.names import PeerRole

DEFAULT_LISTEN: Final = "127.0.0.1:3306"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address", where="--listen", fix=f"Give HOST:PORT, as {DEFAULT_LISTEN}")
    return host.strip("[]"), int(port)


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the context of the port; None without a certificate. Raises SettingsError for bad files."""
    plan = tls_plan("", PeerRole.ROUTER, server=(certificate, key), peer=(None, None), peer_ca=None)
    return None if plan is None else load(plan).server


def serve(
    servers: Servers, listen: str, *, limits: Limits, memory_limit: str, certificate: Path | None, key: Path | None
) -> None:
    """Serve until a signal. Raises UnderstudyError for what cannot begin."""
    host, port = listen_address(listen)
    tls = server_context(certificate, key)
    is_far = not is_loopback(host)
    if is_far:
        _require_safe(servers, host, tls)
    for name in ("mysql_mimic", "sqlglot"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what they log are the errors that clients get
    asyncio.run(_serve(Front(servers, limits, memory_limit, tls, needs_key=is_far), host, port))


def _require_safe(servers: Servers, host: str, tls: ssl.SSLContext | None) -> None:
    """Refuse to listen beyond loopback without TLS, or in front of servers that anybody may ask."""
    if tls is None:
        what = f"the address {host} is not of loopback, and there is no certificate"
        raise SettingsError(what, where="--listen", fix="Give --tls-cert-file, or listen at 127.0.0.1")
    with servers.client("") as client:
        try:
            client.stores()
        except UnauthenticatedError:
            return
    what = f"the address {host} is not of loopback, and the servers of the stores ask for no keys"
    fix = "Give them credentials (docs/security.md), or listen at 127.0.0.1"
    raise SettingsError(what, where="--listen", fix=fix)


async def _serve(front: Front, host: str, port: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        bound = await front.start(host, port)
    except OSError as error:
        what = f"the address {host}:{port} cannot be listened at: {error.strerror or error}"
        raise UnderstudyError(what, where="--listen", fix="Give another one") from None
    for each in _SIGNALS:
        loop.add_signal_handler(each, ended.set)
    click.echo(f"MySQL at {host}:{bound}, database understudy. The password of a user is an API key.", err=True)
    try:
        await ended.wait()
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
        await front.stop()
