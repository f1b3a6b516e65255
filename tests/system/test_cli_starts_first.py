"""`understudy serve` in the order in which people try things: before the query, beside it, and after its end."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.command_line import ask, serving
from tests.support.spark.queries import wait_until

ALIASES = """
[op0]
name = "words"
value = ["n", "total"]
[op0.result]
times = { function = "count", buffers = ["n"] }
"""
NO_CHECKPOINT = "waiting: there is no checkpoint at "


def test_serve_may_be_started_before_the_query_with_names_for_its_stores(tmp_path: Path) -> None:
    checkpoint, names = HandmadeCheckpoint(tmp_path / "counts"), tmp_path / "names.toml"
    names.write_text(ALIASES)
    with serving([str(checkpoint.path), "--aliases", str(names)], tmp_path / "out", ready=NO_CHECKPOINT) as serve:
        checkpoint.path.mkdir()
        checkpoint.write("metadata", b'{"id":"11111111-2222-4333-8444-555555555555"}')
        serve.wait_for("waiting: no batch has been committed yet")
        checkpoint.create().add(1, 2)
        serve.wait_for("Ctrl-C stops.")
        (curl,) = [line.split("'")[1] for line in serve.output.splitlines() if "curl" in line]
        with urllib.request.urlopen(curl, timeout=60) as reply:
            assert json.loads(reply.read())["found"] is True
        described = serve.ask("stores", "words").stdout
        assert "result       times  long" in described
        assert "no result    total" in described
        assert serve.errors.count(NO_CHECKPOINT) == 1
        assert not [line for line in serve.errors.splitlines() if "waiting: action" in line]

        shutil.rmtree(checkpoint.path)
        gone = "the checkpoint is gone"
        serve.wait_for(gone)
        wait_until(lambda: "unknown" in serve.ask("lag").stdout, what="an unknown lag")
        assert serve.errors.count(gone) == 1
        assert serve.stop() == 0


def test_names_that_fit_no_store_are_reported_when_the_query_has_stores(tmp_path: Path) -> None:
    checkpoint, names = HandmadeCheckpoint(tmp_path / "counts"), tmp_path / "names.toml"
    names.write_text('[op9]\nname = "words"\n')
    with serving([str(checkpoint.path), "--aliases", str(names)], tmp_path / "out", ready=NO_CHECKPOINT) as serve:
        checkpoint.create().add(1)
        serve.wait_for("there is no store 'op9' to give an alias to")


@pytest.mark.parametrize(
    ("address", "what", "fix"),
    [
        ("localhost:6379", "the address of the Redis has no scheme (localhost:6379)", "Write redis://localhost:6379\n"),
        ("me:secret@host:6379", "not the URL of a Redis", "redis://host:port/db"),
    ],
)
def test_an_address_of_redis_without_a_scheme_is_refused_for_what_it_is(address: str, what: str, fix: str) -> None:
    done = ask("router", "--application-id", "a", "--redis", address, "--port", "0")
    assert done.returncode == 2
    assert what in done.stderr
    assert fix in done.stderr
    assert "secret" not in done.stderr
