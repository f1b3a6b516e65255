"""Options that select the rows of a store, and the question that they make."""

from __future__ import annotations

from typing import Any

import click
import orjson

from understudy.calls.options import Command, given_bounds
from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.base.texts import printable
from understudy_shared.questions.scan.where import WhereTextError, parse_where_text


def question_options(command: Command) -> Command:
    """Add the options that select rows."""
    for option in (
        click.option(
            "--include-expired/--no-include-expired", default=None,
            help="Whether to show what the watermark has outlived and Spark has not removed.  [default: the store's, "
            "else show it]",
        ),
        click.option("--cursor", help="Go on behind a page: its `next_cursor`."),
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
