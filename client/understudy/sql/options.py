"""The options of `understudy sql --serve`, and the server that they describe."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from understudy.calls.options import ServerOptions
from understudy.calls.trust import client_context
from understudy.client.errors import UsageError
from understudy.sql.extra import imported

if TYPE_CHECKING:
    from understudy.client.core.values import SnapshotBounds

SCAN_TIMEOUT_S = 30.0
_EXTRA = "sql-server"
_FILE = click.Path(dir_okay=False, path_type=Path)


class Serving(NamedTuple):
    """The options of the server. Without a `protocol` the command is no server."""

    protocol: str | None
    listen: str
    tls_cert_file: Path | None
    tls_key_file: Path | None
    max_connections: int
    max_statements: int
    max_result_rows: int
    statement_timeout_s: float

    def run(
        self,
        statement: str | None,
        options: ServerOptions,
        *,
        memory_limit: str,
        bounds: SnapshotBounds,
        form: str | None,
        output: str,
    ) -> None:
        """Serve until a signal. Raises UnderstudyError."""
        if statement is not None or form is not None or output != "-":
            fix = "Leave STATEMENT, --format, --json and --output out, or --serve"
            raise UsageError(
                "a statement or an output is given, and a server takes them from clients", where="--serve", fix=fix
            )
        for package in ("duckdb", "pyarrow", "sqlglot", "mysql_mimic"):
            imported(package, _EXTRA)
        server = import_module("understudy.sql.mysql.server")
        context = client_context(os.environ) if options.url.startswith("https:") else None
        scan_timeout_s = max(options.timeout_s, SCAN_TIMEOUT_S)
        servers = server.Servers(options.url.split(","), options.timeout_s, scan_timeout_s, context, bounds)
        limits = server.Limits(
            self.max_connections, self.max_statements, self.max_result_rows, self.statement_timeout_s
        )
        import_module("understudy.sql.mysql.serve").serve(
            servers,
            self.listen,
            limits=limits,
            memory_limit=memory_limit,
            certificate=self.tls_cert_file,
            key=self.tls_key_file,
        )


_FLAGS = (
    click.option(
        "--serve", "protocol", type=click.Choice(["mysql"]), help="Be a server of this protocol, for BI tools."
    ),
    click.option("--listen", default="127.0.0.1:3306", show_default=True, help="The address of the server."),
    click.option("--tls-cert-file", type=_FILE, help="Certificate of the server, as PEM: it takes TLS alone then."),
    click.option("--tls-key-file", type=_FILE, help="The key of that certificate, if it is in another file."),
    click.option(
        "--max-connections", type=click.IntRange(1, 1000), default=32, show_default=True,
        help="Connections of the server at once.",
    ),
    click.option(
        "--max-statements", type=click.IntRange(1, 64), default=2, show_default=True,
        help="Statements of the server at once, each with --memory-limit; others wait.",
    ),
    click.option(
        "--max-result-rows", type=click.IntRange(1), default=1_000_000, show_default=True,
        help="Rows of a result of the server, above which it is an error.",
    ),
    click.option(
        "--statement-timeout-s", type=click.FloatRange(0, 86_400, min_open=True), default=300.0, show_default=True,
        help="Seconds for a statement of the server, with its rows.",
    ),
)  # fmt: skip


def serving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the server, which the command gets as `serving`."""

    @wraps(command)
    def gathered(**given: Any) -> Any:
        serving = Serving(**{name: given.pop(name) for name in Serving._fields})
        return command(serving=serving, **given)

    for flag in reversed(_FLAGS):
        gathered = flag(gathered)
    return gathered
