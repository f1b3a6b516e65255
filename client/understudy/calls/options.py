"""Options that several commands share: which server, how to print, the bounds of a read, and which rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click
import orjson

from understudy.calls.credentials import trust_options
from understudy.calls.http_client import RemoteServer, ReportedProblemError
from understudy.terminal.console import Page, print_json, print_report
from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.base.texts import printable
from understudy_shared.reads.bounds import MAX_PAGE_ELEMENTS, WAIT_WITH_POSITION_MS

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 5.0
_NOT_GIVEN = (("require_active", False),)
"""A flag is false where it was left out."""


class ServerOptions(NamedTuple):
    """The server that a command asks, and the form in which it prints what the server answers."""

    url: str
    timeout_s: float
    as_json: bool
    application: str | None = None
    """The application of a fleet; None: the server's only one, or the only one with the store."""

    @contextmanager
    def server(self) -> Iterator[RemoteServer]:
        """Give the server. With --json, print a problem as it came; its error goes to stderr all the same."""
        with RemoteServer(self.url, timeout_s=self.timeout_s, application=self.application) as server:
            try:
                yield server
            except ReportedProblemError as problem:
                if self.as_json:
                    print_json(problem.body)
                raise

    def print_report(self, body: bytes, page_of: Callable[[Any], Page]) -> None:
        """Print the JSON that the server answered, or the page that is made of it."""
        print_report(body, page_of, as_json=self.as_json)


application_option = click.option(
    "--application", envvar="UNDERSTUDY_APPLICATION", show_envvar=True, metavar="ID",
    help="The application of a fleet to ask.  [default: the server's, or the only one that has the store]",
)  # fmt: skip

include_expired_option = click.option(
    "--include-expired/--no-include-expired", default=None,
    help="Whether to show what the watermark has outlived and Spark has not removed.  [default: the store's, "
    "else show it]",
)  # fmt: skip


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url, --application, --timeout-s and --json, which the command gets as `options`, and the files for TLS."""

    @wraps(command)
    def gathered(*, url: str, timeout_s: float, as_json: bool, application: str | None, **others: Any) -> Any:
        return command(options=ServerOptions(url, timeout_s, as_json, application), **others)

    flags = (
        click.option(
            "--url", default=DEFAULT_URL, envvar="UNDERSTUDY_URL", show_default=True, show_envvar=True,
            help="Address of a node or router, several with commas; http:// may be left out.",
        ),
        click.option(
            "--timeout-s", type=click.FloatRange(min=0, min_open=True), default=DEFAULT_TIMEOUT_S, show_default=True,
            help="Seconds to wait for a reply, on top of --wait-ms.",
        ),
        application_option,
        click.option("--json", "as_json", is_flag=True, help="Print the server's JSON, one document per line."),
    )  # fmt: skip
    return _all(trust_options(gathered), flags)


def bound_options(command: Command) -> Command:
    """Add the bounds of a read. Without any, every replica may answer, and the answer says its age."""
    options = (
        click.option("--max-lag", type=click.IntRange(min=0), help="Most versions (batches) behind, inclusive."),
        click.option("--max-staleness-ms", type=click.IntRange(min=0), help="Most milliseconds behind, inclusive."),
        click.option("--min-position", help="At least as new as the answer that had this `position`."),
        click.option("--version", type=click.IntRange(min=0), help="Exactly this version, newest or not."),
        click.option("--snapshot", help="Exactly the version of the answer that had this `position`, or of a lease."),
        click.option(
            "--at", help="The newest version committed by then: -1m (ago), ISO 8601 with an offset, or ms since 1970."
        ),
        click.option("--require-active", is_flag=True, help="Only the active replica may answer."),
        click.option(
            "--unknown-lag", type=click.Choice(["serve", "refuse"]),
            help="What to do while the lag is unknown.  [default: serve without a lag bound, refuse with one]",
        ),
        click.option(
            "--wait-ms", type=click.IntRange(min=0),
            help="Time to wait for --min-position, --version or --snapshot, in ms.  "
            f"[default: {WAIT_WITH_POSITION_MS} with one of them, else 0]",
        ),
    )  # fmt: skip
    return _all(command, options)


def selection_options(command: Command) -> Command:
    """Add the options that select a part of a key's elements."""
    options = (
        click.option(
            "--limit", type=click.IntRange(1, MAX_PAGE_ELEMENTS),
            help=f"At most so many elements of a key's list.  [default: {MAX_PAGE_ELEMENTS}]",
        ),
        click.option("--cursor", help="The next page of a list: the `next_cursor` of the page before."),
        include_expired_option,
    )  # fmt: skip
    return _all(command, options)


def given_bounds(bounds: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds that were given, 0 among them: the server knows its own defaults."""
    return {name: value for name, value in bounds.items() if value is not None and (name, value) not in _NOT_GIVEN}


def as_parameters(bounds: dict[str, Any]) -> dict[str, str]:
    """Return bounds as query parameters."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in bounds.items()}


def wait_ms_of(bounds: dict[str, Any]) -> int:
    """Return how long the server may wait, in ms: the timeout of the call comes on top."""
    wait_ms = bounds.get("wait_ms")
    if wait_ms is None:
        return WAIT_WITH_POSITION_MS if {"min_position", "version", "snapshot"} & bounds.keys() else 0
    return int(wait_ms)


def _all(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def question_options(command: Command) -> Command:
    """Add the options that select rows."""
    for option in (
        include_expired_option,
        click.option("--cursor", help="Continue after a page: its `next_cursor`."),
        click.option("--partition", type=click.IntRange(min=0), help="Only this partition of the store."),
        click.option("--from", help="The least value of the first key column; of a window, its least start."),
        click.option("--to", help="The end of the range of the first key column: rows are before it."),
        click.option("--prefix", help='Values of the first key columns, as JSON: \'["UA"]\'.'),
        click.option(
            "--where", "comparisons", multiple=True,
            help="What must hold: 'flights > 100 and carrier = \"UA\"', or a comparison as JSON: "
            "'[\"flights\", \">\", 100]'. May be given several times.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def question_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a question. Raises CommandError for an option that is not JSON."""
    given = given_bounds(given)
    prefix, comparisons = given.pop("prefix", None), given.pop("comparisons", ())
    if prefix is not None:
        given["prefix"] = json_list(prefix, "--prefix", "'[\"UA\"]'")
    if comparisons:
        given["where"] = [term for each in comparisons for term in _terms(each)]
    return given


def _terms(text: str) -> list[Any]:
    """Return the comparisons of an option. Raises CommandError; it shows where an expression is wrong."""
    from understudy_shared.questions.scan.where import WhereTextError, parse_where_text  # noqa: PLC0415  # slow to import

    if text.lstrip().startswith("["):
        return [json_list(text, "--where", '\'["flights", ">", 100]\'')]
    try:
        return parse_where_text(text)
    except WhereTextError as error:
        click.echo("\n".join(map(printable, error.shown.split("\n"))), err=True)
        raise CommandError(error.what, where="--where", fix=error.fix, exit_code=ExitCode.USAGE) from None


def json_list(text: str, where: str, example: str) -> list[Any]:
    """Return the list that an option is, as JSON. Raises CommandError."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        found, why = None, f"{text!r} is not JSON: {error}"
    else:
        why = f"{text!r} is not a JSON array"
    if isinstance(found, list):
        return found
    raise CommandError(why, where=where, fix=f"Write for example {where} {example}", exit_code=ExitCode.USAGE)
