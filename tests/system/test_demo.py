"""`understudy demo` for real: it runs what it says, and everything that it names answers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.services.command_line import ask
from tests.support.services.demo_process import DemoProcess
from tests.support.services.process_table import is_there
from tests.support.spark.queries import wait_until


def wait_for_line(log: Path, text: str) -> None:
    """Return when a log has the text."""
    wait_until(lambda: text in log.read_text(), what=f"{text!r} in {log.name}")


def test_it_runs_what_it_says_that_it_runs(demo: DemoProcess) -> None:
    assert [len(demo.parts(role)) for role in ("valkey", "pipeline", "node", "router")] == [1, 1, 3, 2]
    assert all(is_there(part.pid) for role in ("valkey", "node", "router") for part in demo.parts(role))
    logs = Path(demo.ready["folder"]) / "logs"
    for role, says in (("node", "Node ready at"), ("router", "Routing at")):
        for part in demo.parts(role):
            wait_for_line(logs / f"{part.name}.log", f"{says} {part.url}")


def test_a_key_is_found_at_every_router_and_explained(demo: DemoProcess) -> None:
    for router in demo.parts("router"):
        done = ask("get", "aircraft", "N14228", "--json", "--url", router.url)
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["key"], answer["found"]) == (0, {"tailnum": "N14228"}, True), done
        explained = json.loads(ask("explain", "aircraft", "N14228", "--json", "--url", router.url).stdout)
        assert explained["partition"] == answer["partition"]
        assert len(explained["choice"]) >= 2, "an active and a standby"
