"""`understudy demo` for real: Valkey, Spark, nodes and routers; lookups, a killed node, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import UNDERSTUDY, ask, environment
from tests.support.process_table import is_there
from tests.support.spark_queries import wait_until

READY_LIMIT_S = 240
END_LIMIT_S = 90


class RealDemo:
    """The demo's process; what it says lies in files."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True)
        self._output, self._errors = folder / "output.txt", folder / "errors.txt"
        with self._output.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                [UNDERSTUDY, "demo", "--json", "--max-flights", "3000"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment({"TMPDIR": str(self.scratch)}),
                start_new_session=True,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """All that it has said."""
        return [json.loads(line) for line in self._output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, event: str, *, limit_s: float = READY_LIMIT_S) -> dict[str, Any]:
        """The first event of a kind."""
        wait_until(
            lambda: any(told["event"] == event for told in self.events) or self.process.poll() is not None,
            what=f"{event!r} of the demo",
            limit_s=limit_s,
        )
        found = next((told for told in self.events if told["event"] == event), None)
        assert found is not None, self._errors.read_text()
        return found

    def interrupt(self) -> int:
        """Ctrl-C, as a terminal sends it: to everybody in the group. Returns the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(END_LIMIT_S)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDemo]:
    """One demo for all tests of this module, in their order: the last ends it."""
    running = RealDemo(tmp_path_factory.mktemp("demo"))
    try:
        running.wait_for("ready")
        yield running
    finally:
        running.process.kill()
        running.process.wait(END_LIMIT_S)


def named(ready: dict[str, Any], role: str) -> list[dict[str, Any]]:
    """Its processes of one kind."""
    return [process for process in ready["processes"] if process["role"] == role]


def wait_for_line(log: Path, text: str) -> None:
    """Until a log has it."""
    wait_until(lambda: text in log.read_text(), what=f"{text!r} in {log.name}")


def test_it_runs_what_it_says_that_it_runs(demo: RealDemo) -> None:
    ready = demo.wait_for("ready")
    assert [len(named(ready, role)) for role in ("valkey", "pipeline", "node", "router")] == [1, 1, 3, 2]
    assert all(is_there(process["pid"]) for process in ready["processes"] if process["role"] != "pipeline")
    logs = Path(ready["folder"]) / "logs"
    for role, says in (("node", "Node ready at"), ("router", "Routing at")):
        for process in named(ready, role):
            wait_for_line(logs / f"{process['name']}.log", f"{says} {process['url']}")


def test_a_key_is_found_at_every_router_and_explained(demo: RealDemo) -> None:
    for router in named(demo.wait_for("ready"), "router"):
        done = ask("get", "aircraft", "N14228", "--json", "--url", router["url"])
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["key"], answer["found"]) == (0, {"tailnum": "N14228"}, True), done
        told = json.loads(ask("explain", "aircraft", "N14228", "--json", "--url", router["url"]).stdout)
        assert told["partition"] == answer["partition"]
        assert len(told["choice"]) >= 2, "an active and a standby"


def test_every_replica_is_in_the_routers_table(demo: RealDemo) -> None:
    router = named(demo.wait_for("ready"), "router")[0]
    report = json.loads(ask("lag", "--json", "--url", router["url"]).stdout)
    assert {store["store"] for store in report["stores"]} == {"aircraft", "routes", "airport_hours"}
    table = ask("lag", "--url", router["url"])
    assert table.returncode == 0
    assert all(f"node-{number}" in table.stdout for number in (1, 2, 3))


def test_lookups_go_on_when_the_active_node_of_a_key_is_killed(demo: RealDemo) -> None:
    ready = demo.wait_for("ready")
    url = named(ready, "router")[0]["url"]
    told = json.loads(ask("explain", "aircraft", "N14228", "--json", "--url", url).stdout)
    active = f"http://{told['active_host']['host']}:{told['active_host']['port']}"
    (node,) = [node for node in named(ready, "node") if node["url"] == active]
    os.kill(node["pid"], signal.SIGKILL)
    done = ask("get", "aircraft", "N14228", "--json", "--url", url)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["served_by"]["port"] != told["active_host"]["port"]
    died = demo.wait_for("died", limit_s=END_LIMIT_S)
    assert (died["name"], died["how"]) == (node["name"], "was killed by SIGKILL")
    assert f"--node-id {node['name']} " in died["detail"]


def test_ctrl_c_stops_everything_and_leaves_nothing_behind(demo: RealDemo) -> None:
    ready = demo.wait_for("ready")
    group = [process["pid"] for process in ready["processes"]]
    assert demo.interrupt() == 0
    wait_until(lambda: not any(map(is_there, group)), what="the end of all")
    assert demo.events[-1]["event"] == "stopped"
    assert [told for told in demo.events if told["event"] == "killed"] == []
    assert not Path(ready["folder"]).exists()
    assert list(demo.scratch.iterdir()) == []
