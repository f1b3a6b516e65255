"""`understudy get`, `lookup` and `explain`: one key as words, or keys as JSON, and who would be asked for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import click
import orjson

from understudy.calls.http_client import RemoteServer, ReportedProblemError, problem_exit_code
from understudy.calls.keyed import KeyCall, check_key, checked_json
from understudy.calls.options import (
    Command,
    ServerOptions,
    as_parameters,
    bound_options,
    given_bounds,
    selection_options,
    server_options,
    wait_ms_of,
)
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.values import parts_of
from understudy.terminal.console import print_json, print_page
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.terminal.reports import answer_page, batch_page, explain_page
from understudy_shared.reads.bounds import MAX_BATCH_KEYS


class KeyCommand(click.Command):
    """A command that explains what to do about a key that looks like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            word = dashed_word(given, error.option_name)
            if word is None or error.possibilities:
                raise
            message = f"{word!r} looks like an option: put -- before keys that begin with a dash"
            raise click.UsageError(message, ctx) from None


def dashed_word(words: Sequence[str], option: str) -> str | None:
    """Return the word that contains the unknown `option`: `-UA` for `-U`; None without one."""
    letter = option.removeprefix("-")
    if option.startswith("--"):
        return next((word for word in words if word.partition("=")[0] == option), None)
    return next((word for word in words if word[:1] == "-" and word[1:2] != "-" and letter in word), None)


def raw_option(command: Command) -> Command:
    return click.option("--raw", is_flag=True, help="Show what Spark stores, too, where a result is computed from it.")(
        command
    )


def longs_option(command: Command) -> Command:
    return click.option(
        "--longs", type=click.Choice(["number", "string"]),
        help="Print whole numbers so: as strings they survive programs whose numbers are doubles.  [default: number]",
    )(command)  # fmt: skip


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1)
@raw_option
@longs_option
@bound_options
@selection_options
@server_options
def get(
    store: str,
    key: tuple[str, ...],
    *,
    raw: bool,
    longs: str | None,
    options: ServerOptions,
    **bounds: Any,
) -> None:
    """Look up one key of STORE: a word per key column, in schema order.

    Shows the result of the query where it is known, else what Spark stores; --raw shows both.

    A window is two words, its start and its end. Numbers, dates and times are written as in the answers. Keys with
    nulls, empty texts, structs or arrays need the exact form: understudy lookup.

    \b
    Examples:
      understudy get aircraft N14228
      understudy get flights_per_hour JFK 2013-01-01T05:00:00Z 2013-01-01T06:00:00Z --max-lag 2
      understudy get balances -- -17
    """
    if not key or "" in key:
        raise CommandError(
            "a key is written as words, none of them empty",
            fix=f"Use the exact form: understudy lookup {store} '<JSON array or object>'",
            exit_code=ExitCode.USAGE,
        )
    _look_up_one(options, store, key, given_bounds(bounds), longs, raw=raw)


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1, metavar="[JSON]...")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read keys from standard input, one JSON key per line.")
@raw_option
@longs_option
@bound_options
@selection_options
@server_options
def lookup(
    store: str,
    key: tuple[str, ...],
    *,
    from_stdin: bool,
    raw: bool,
    longs: str | None,
    options: ServerOptions,
    **bounds: Any,
) -> None:
    """Look up keys of STORE, each a JSON array in schema order or a JSON object by column name.

    One key is one request. Several, or --stdin, are asked in batches of up to 1000; each key has its own outcome, and
    the exit code is the highest of them. The key of a global aggregate is [].

    \b
    Examples:
      understudy lookup aircraft '["N14228"]'
      understudy lookup aircraft '{"tailnum": null}' '[""]' --json
      jq -c '[.tailnum]' planes.json | understudy lookup aircraft --stdin --json
    """
    if bool(key) == from_stdin:
        raise click.UsageError("give JSON keys, or --stdin: one of the two")
    given = given_bounds(bounds)
    if from_stdin:
        _look_up_many(options, store, keys_of_lines(sys.stdin.buffer), given, longs, raw=raw)
    elif len(key) == 1:
        text = checked_json(key[0], where="the key")
        _look_up_one(options, store, text, given, longs, raw=raw)
    else:
        checked = [checked_json(text, where=f"key {number}") for number, text in enumerate(key, 1)]
        _look_up_many(options, store, checked, given, longs, raw=raw)


def outcome_of(answer: dict[str, Any]) -> ExitCode:
    """Return the exit code for one item of a batch."""
    if "found" in answer:
        return ExitCode.OK if answer["found"] else ExitCode.ABSENT
    return problem_exit_code(answer)


def expanded(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Expand the results of a compact answer: each gets the members of its read instead of the read's index.

    The results of a long answer are returned as they are.
    """
    reads, store = batch.get("reads", ()), batch.get("store")
    return [_expanded(result, store, reads) if "read" in result else result for result in batch["results"]]


def _expanded(result: dict[str, Any], store: object, reads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = {name: member for name, member in result.items() if name not in {"status", "read"}}
    return {"status": result["status"], "store": store, **own, **reads[result["read"]]}


def chunks(keys: Iterable[str], size: int) -> Iterator[tuple[list[str], CommandError | None]]:
    """Yield lists of at most `size` keys; with the last, the error that ended them, so that those before are asked."""
    source = iter(keys)
    while True:
        chunk: list[str] = []
        try:
            for key in islice(source, size):
                chunk.append(key)  # noqa: PERF402  # those before an error must stay
        except CommandError as error:
            yield chunk, error
            return
        if not chunk:
            return
        yield chunk, None


def keys_of_lines(lines: Iterable[bytes], *, source: str = "standard input") -> Iterator[str]:
    """Yield a JSON key per line, empty lines left out. Raises CommandError naming the first line that is not JSON.

    `source` is what errors call the lines.
    """
    for number, line in enumerate(lines, 1):
        where = f"line {number} of {source}"
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise CommandError(f"not UTF-8 ({error.reason})", where=where, exit_code=ExitCode.USAGE) from None
        if text:
            yield checked_json(text, where=where)


def _look_up_one(
    options: ServerOptions,
    store: str,
    key: Sequence[str] | str,
    bounds: dict[str, Any],
    longs: str | None,
    *,
    raw: bool,
) -> None:
    with options.server() as server:
        call = KeyCall(server, store, "lookup", key)
        body = call.get(as_parameters(given_bounds({"longs": longs, **bounds})), wait_ms=wait_ms_of(bounds))
    options.print_report(body, lambda answer: answer_page(answer, raw=raw))
    sys.exit(outcome_of(orjson.loads(body)))


def _look_up_many(
    options: ServerOptions, store: str, keys: Iterable[str], bounds: dict[str, Any], longs: str | None, *, raw: bool
) -> None:
    worst = ExitCode.OK
    with options.server() as server:
        reader = BoundStore(Reader(server.state), store)
        for chunk, error in chunks(keys, MAX_BATCH_KEYS):
            if chunk:
                answers = _ask(server, reader, chunk, bounds, longs)
                worst = max(worst, *map(outcome_of, answers))
                if options.as_json:
                    for answer in answers:
                        print_json(orjson.dumps(answer))
                else:
                    print_page(batch_page(chunk, answers, raw=raw))
            if error is not None:
                raise error
    sys.exit(worst)


def _ask(
    server: RemoteServer, store: BoundStore, chunk: Sequence[str], bounds: dict[str, Any], longs: str | None
) -> list[dict[str, Any]]:
    content = b'{"keys":[%b],"bounds":%b}' % (",".join(chunk).encode(), orjson.dumps(bounds))
    parameters = as_parameters(given_bounds({"compact": True, "longs": longs}))
    body = server.post(f"{store.path}/lookup", content, parameters, wait_ms=wait_ms_of(bounds))
    answers = expanded(orjson.loads(body))
    for key, answer in zip(chunk, answers, strict=True):
        if "found" in answer:
            check_key(server, store, parts_of(orjson.loads(key)), answer)
    return answers


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1)
@click.option("--key", "json_key", metavar="JSON", help="The key in the exact form, instead of words.")
@bound_options
@selection_options
@server_options
def explain(
    store: str,
    key: tuple[str, ...],
    *,
    json_key: str | None,
    options: ServerOptions,
    **bounds: Any,
) -> None:
    """Tell which partition of STORE a key is in, who would be asked for it in which order, and who would not, and why.

    Asks no node: it is what a router would do now, with the bounds that are given. The key is written as for get, or
    as JSON with --key.

    \b
    Examples:
      understudy explain aircraft N14228
      understudy explain routes UA EWR IAH --max-lag 0
      understudy explain aircraft --key '[null]' --json
    """
    asked = _key(key, json_key)
    with options.server() as server:
        call = KeyCall(server, store, "metadata", asked)
        try:
            body = call.get(as_parameters(given_bounds(bounds)))
        except ReportedProblemError as problem:
            if problem.slug == "unknown-path":
                raise _not_a_router(options.url) from None
            raise
    options.print_report(body, explain_page)


def _key(key: tuple[str, ...], json_key: str | None) -> tuple[str, ...] | str:
    if bool(key) == (json_key is not None):
        raise click.UsageError("give the key's words, or --key JSON: one of the two")
    if json_key is not None:
        return checked_json(json_key, where="--key")
    if "" in key:
        raise click.UsageError("a key's words are not empty: use the exact form, --key '<JSON array or object>'")
    return key


def _not_a_router(url: str) -> CommandError:
    return CommandError(
        "this server is a node: it answers by itself and chooses no replica, so there is nothing to explain",
        where=url,
        fix="Name a router with --url; a node by itself shows its partitions with: understudy lag",
        exit_code=ExitCode.REFUSED,
    )
