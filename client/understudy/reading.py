"""`understudy get` and `understudy lookup`: one key as words, or keys as JSON, one or many."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import click
import orjson

from understudy.console import print_answer, print_batch, print_json
from understudy.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.http_client import Server, ServerProblemError, path_segment, problem_exit_code
from understudy.options import as_parameters, bound_options, given_bounds, server_options, wait_ms_of

MAX_BATCH_KEYS = 1000
"""A server refuses more in one request; more keys are asked in several."""


class KeyCommand(click.Command):
    """Says what to do about a key that looks like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if re.match(r"-[0-9.]", error.option_name):
                message = f"{error.option_name}... looks like an option: put -- before keys that begin with a dash"
                raise click.UsageError(message, ctx) from None
            raise


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1)
@bound_options
@server_options
def get(store: str, key: tuple[str, ...], *, url: str, timeout_s: float, as_json: bool, **bounds: Any) -> None:
    """Look up one key of STORE: a word per key column, in schema order.

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
    path = "/".join(["/v1/stores", path_segment(store), "keys", *map(path_segment, key)])
    _look_up_one(path, {}, given_bounds(bounds), url=url, timeout_s=timeout_s, as_json=as_json)


@click.command(cls=KeyCommand, epilog=EXIT_CODES_HELP)
@click.argument("store")
@click.argument("key", nargs=-1, metavar="[JSON]...")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read keys from standard input, one JSON key per line.")
@bound_options
@server_options
def lookup(
    store: str, key: tuple[str, ...], *, from_stdin: bool, url: str, timeout_s: float, as_json: bool, **bounds: Any
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
        _look_up_many(store, keys_of_lines(sys.stdin.buffer), given, url=url, timeout_s=timeout_s, as_json=as_json)
    elif len(key) == 1:
        text = checked_json(key[0], where="the key")
        path = f"/v1/stores/{path_segment(store)}/lookup"
        _look_up_one(path, {"key": text}, given, url=url, timeout_s=timeout_s, as_json=as_json)
    else:
        checked = [checked_json(text, where=f"key {number}") for number, text in enumerate(key, 1)]
        _look_up_many(store, checked, given, url=url, timeout_s=timeout_s, as_json=as_json)


def checked_json(text: str, *, where: str) -> str:
    """`text`, when it is JSON: it travels as it was written, so that no digit is lost on the way."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CommandError(
            f"{text!r} is not JSON: {error}",
            where=where,
            fix="Write an array in schema order or an object by column name: '[\"N14228\", 5]'",
            exit_code=ExitCode.USAGE,
        ) from None
    return text


def outcome_of(answer: dict[str, Any]) -> ExitCode:
    """The exit code that one item of a batch stands for."""
    if "found" in answer:
        return ExitCode.OK if answer["found"] else ExitCode.ABSENT
    return problem_exit_code(answer)


def chunks(keys: Iterable[str], size: int) -> Iterator[tuple[list[str], CommandError | None]]:
    """Keys in lists of at most `size`; with the last, the error that ended them, so that those before it are asked."""
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


def keys_of_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """A JSON key per line, empty lines left out. Raises CommandError naming the first line that is none."""
    for number, line in enumerate(lines, 1):
        where = f"line {number} of standard input"
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise CommandError(f"not UTF-8 ({error.reason})", where=where, exit_code=ExitCode.USAGE) from None
        if text:
            yield checked_json(text, where=where)


def _look_up_one(
    path: str, parameters: dict[str, str], bounds: dict[str, Any], *, url: str, timeout_s: float, as_json: bool
) -> None:
    with Server(url, timeout_s=timeout_s) as server, problems_as_json(as_json):
        body = server.get(path, {**parameters, **as_parameters(bounds)}, wait_ms=wait_ms_of(bounds))
    if as_json:
        print_json(body)
    else:
        print_answer(body)
    sys.exit(outcome_of(orjson.loads(body)))


def _look_up_many(
    store: str, keys: Iterable[str], bounds: dict[str, Any], *, url: str, timeout_s: float, as_json: bool
) -> None:
    worst = ExitCode.OK
    path = f"/v1/stores/{path_segment(store)}/lookup"
    with Server(url, timeout_s=timeout_s) as server, problems_as_json(as_json):
        for chunk, error in chunks(keys, MAX_BATCH_KEYS):
            if chunk:
                answers = _ask(server, path, chunk, bounds)
                worst = max(worst, *map(outcome_of, answers))
                _print_answers(chunk, answers, as_json=as_json)
            if error is not None:
                raise error
    sys.exit(worst)


def _ask(server: Server, path: str, chunk: Sequence[str], bounds: dict[str, Any]) -> list[dict[str, Any]]:
    content = b'{"keys":[%b],"bounds":%b}' % (",".join(chunk).encode(), orjson.dumps(bounds))
    answers: list[dict[str, Any]] = orjson.loads(server.post(path, content, wait_ms=wait_ms_of(bounds)))["results"]
    return answers


def _print_answers(chunk: Sequence[str], answers: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for answer in answers:
            print_json(orjson.dumps(answer))
    else:
        print_batch(chunk, answers)


@contextmanager
def problems_as_json(as_json: bool) -> Iterator[None]:
    """With --json a problem too is printed as the server sent it; people read the error on stderr all the same."""
    try:
        yield
    except ServerProblemError as problem:
        if as_json:
            print_json(problem.body)
        raise
