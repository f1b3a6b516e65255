"""`understudy serve` on a checkpoint that Spark wrote, and commands that read from it, as a user runs them."""

from __future__ import annotations

import json
import shlex
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.matrix import in_full
from tests.support.services.command_line import Serving, serve_on_terminal, serving
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2
from tests.support.spark.queries import run_query
from tests.support.spark.shapes import SHAPES_SCHEMA, build_shapes, operators_by_branch, shape_batches

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import Position

BRANCHES = ("text", "struct", "small", "window", "global")
ROWS = shape_batches(batches=2, rows_per_batch=60)
ALL_ROWS = [row for batch in ROWS for row in batch]
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two batches of a query with stores of several kinds of key."""
    folder = tmp_path_factory.mktemp("cli") / "shapes"
    run_query(
        spark,
        name="shapes",
        schema=SHAPES_SCHEMA,
        batches=ROWS,
        build=lambda source: build_shapes(source, BRANCHES),
        checkpoint=folder,
        state_format=ROCKSDB_CHANGELOG_V2,
    )
    return folder


@pytest.fixture(scope="module")
def aliases(spark: SparkSession, checkpoint: Path) -> Path:
    """Names for the stores: those of the query's branches."""
    file = checkpoint.with_name("aliases.toml")
    operators = operators_by_branch(spark, checkpoint)
    file.write_text("".join(f'[op{operator}]\nname = "{branch}"\n' for branch, operator in operators.items()))
    return file


@pytest.fixture(scope="module")
def served(checkpoint: Path, aliases: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The checkpoint, served for the tests that only ask."""
    folder = tmp_path_factory.mktemp("served")
    arguments = [str(checkpoint), "--aliases", str(aliases), "--statestore-cache-max-bytes", "4MiB"]
    with serving(arguments, folder) as running:
        yield running


def counted(text: str) -> int:
    """What the query counts for a group of the branch `text`: count(i)."""
    return sum(1 for row in ALL_ROWS if row["s"] == text and row["i"] is not None)


def fetch_status(url: str) -> tuple[int, dict[str, object]]:
    """Status and JSON of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_welcome_has_a_curl_for_every_store_that_the_server_understands(served: Serving) -> None:
    curls = [shlex.split(line)[1] for line in served.output.splitlines() if line.strip().startswith("curl ")]
    replies = [fetch_status(url) for url in curls]
    assert sorted(str(body["store"]) for _, body in replies) == sorted(BRANCHES)
    assert all("found" in body for _, body in replies), replies
    assert "is RUNNING action=task-state" in served.errors


def test_a_key_of_the_query_is_found_with_what_spark_counted(served: Serving) -> None:
    keys = {str(row["s"]) for row in ALL_ROWS if row["s"] and str(row["s"]).isprintable()}
    for key in sorted(keys, key=lambda text: (text.isascii(), text))[:3]:
        done = served.ask("get", "text", key, "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["key"], answer["version"]) == (0, {"text_s": key}, 2), done
        assert next(iter(answer["value"].values())) == counted(key)
    people = served.ask("get", "text", key, "--max-lag", "0")
    assert (people.returncode, people.stderr) == (0, "")
    assert "2 of 2, 0 versions behind" in people.stdout


def test_a_refusal_has_its_exit_code_and_says_why_the_replica_may_not_answer(served: Serving, checkpoint: Path) -> None:
    lineage = json.loads(served.ask("stores", "text", "--json").stdout)["lineage"]
    future = Position(ApplicationId(checkpoint.name), Lineage(lineage), 99, None).encode()
    refused = served.ask("get", "text", "a", "--min-position", future, "--wait-ms", "1")
    assert refused.returncode == 3
    assert "below-min-position (active, RUNNING, version 2" in refused.stderr


@pytest.mark.parametrize(
    "how", in_full((signal.SIGINT, signal.SIGTERM), if_in=("SIGINT",), names=("SIGINT", "SIGTERM"))
)
def test_a_signal_stops_it_in_good_order_and_the_next_may_have_its_directory(
    checkpoint: Path, tmp_path: Path, how: signal.Signals
) -> None:
    for _ in range(2):
        with serving([str(checkpoint)], tmp_path) as running:
            assert running.ask("stores").returncode == 0
            assert running.stop(how) == 0
            assert running.errors.splitlines()[-1].endswith("INFO stopped action=stopped")
            assert "Traceback" not in running.errors


def uncommitted(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint as it was before its first batch."""
    young = folder / "checkpoint"
    young.mkdir()
    (young / "metadata").write_bytes((checkpoint / "metadata").read_bytes())
    return young


def test_a_query_that_has_not_committed_yet_is_waited_for(checkpoint: Path, tmp_path: Path) -> None:
    with serving(
        [str(uncommitted(checkpoint, tmp_path))], tmp_path, ready="no batch has been committed yet"
    ) as running:
        assert running.stop() == 0
        assert running.output == ""


def test_a_terminal_shows_a_bar_and_no_line_per_task_until_the_welcome(checkpoint: Path, tmp_path: Path) -> None:
    shown = serve_on_terminal([str(checkpoint)], tmp_path, until="Ctrl-C stops.")
    before, _, _ = shown.partition("Serving at http://127.0.0.1:")
    assert before.rindex(SHOW_CURSOR) > before.rindex(HIDE_CURSOR)
    assert "action=task-state" not in before
