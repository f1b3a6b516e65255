"""`understudy serve` in the order in which people try things: before the query, beside it, and after its end."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.command_line import serving
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
