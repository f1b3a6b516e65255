"""`understudy doctor` on a checkpoint and on a server: facts, what is wrong, what to do, and an exit code; and
`understudy config`: what a service would have, who set it, and no secret.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.canned_server import PROBLEM, Canned, canned_server

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode

LIVE, READY = Canned(b'{"live": true}'), Canned(b'{"ready": true, "reasons": []}')
RELEASE = Canned(b'{"info": {"version": "0.1.0"}}')
CHECKPOINT = Canned(b'{"findings": []}')
LACKING = Canned(b'{"type": "unknown-path", "title": "no", "status": 404, "detail": "no"}', 404, PROBLEM)
STORES = Canned(b'{"stores": [{"store": "aircraft"}], "not_served": []}')


def run(target: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", target, *arguments])


def health(state: str) -> Canned:
    indicator = {"name": "bus", "state": state, "symptom": "Redis is away", "cause": "", "action": "Bring it back"}
    return Canned(json.dumps({"headline": "h", "state": state, "indicators": [indicator]}).encode())


def test_a_checkpoint_is_described_and_what_could_be_better_is_a_hint(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "counts").create().add(1, 2, 3)
    result = run(str(checkpoint.path), "--json")
    assert result.exit_code == ExitCode.OK, result.output
    report = json.loads(result.stdout)
    assert report["operators"][0]["stores"] == ["op0"]
    assert report["versions"][1] >= 1
    assert {each["state"] for each in report["findings"]} <= {"hint"}
    text = run(str(checkpoint.path)).stdout
    assert "op0" in text
    assert report["query_id"] in text


def test_it_says_what_an_operator_of_spark_3_is_inferred_from_and_what_to_write_where_several_fit(
    tmp_path: Path,
) -> None:
    operators = ("aggregation", "flatMapGroupsWithState")
    conf = {f"spark.sql.streaming.{each}.stateFormatVersion": "2" for each in operators}
    plain = HandmadeCheckpoint(tmp_path / "plain", conf=conf).create().add(1)
    either = HandmadeCheckpoint(tmp_path / "either", conf=conf, key_columns=(("count", "long"),)).create().add(1)
    for each in (plain, either):
        (each.path / "state/0/_metadata/metadata").unlink()
    hints = [each["what"] for each in json.loads(run(str(plain.path), "--json").stdout)["findings"]]
    assert any("taken for stateStoreSave: its values (count, total) may be buffers" in hint for hint in hints), hints

    refused = run(str(either.path))
    assert refused.exit_code != ExitCode.OK
    assert '(below [op0] the line operator = "dedupe" or "stateStoreSave")' in refused.stderr
    aliases = tmp_path / "aliases.toml"
    aliases.write_text('[op0]\nname = "counts"\noperator = "stateStoreSave"\n')
    report = json.loads(run(str(either.path), "--aliases", str(aliases), "--json").stdout)
    assert [(each["operator"], each["stores"]) for each in report["operators"]] == [("stateStoreSave", ["counts"])]
    assert any("the alias file says so" in each["what"] for each in report["findings"]), report["findings"]

    aliases.write_text('[op0]\noperator = "dedupe"\n')
    ignored = run(str(plain.path), "--aliases", str(aliases))
    assert "the alias file names dedupe for op0, which is stateStoreSave" in ignored.stdout
    assert run("http://127.0.0.1:1", "--aliases", str(aliases)).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("provider", [spark.HDFS, spark.ROCKSDB], ids=["hdfs", "rocksdb"])
def test_each_version_of_the_newest_state_without_files_is_named_and_the_exit_code_says_so(
    tmp_path: Path, provider: str
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "counts", provider).create().add(1, 2, 3)
    assert run(str(checkpoint.path)).exit_code == ExitCode.OK
    (checkpoint.path / checkpoint.changelog_path(3, 0)).unlink()
    (checkpoint.path / checkpoint.changelog_path(2, 1)).unlink()
    checkpoint.write(checkpoint.changelog_path(3, 1), b"")
    result = run(str(checkpoint.path), "--json")
    assert result.exit_code == ExitCode.REFUSED
    wrong = [each["what"] for each in json.loads(result.stdout)["findings"] if each["state"] == "wrong"]
    assert [what.removeprefix("Spark cannot restart from these files: ").partition(" (")[0] for what in wrong] == [
        "version 3 of 0_0 has neither changelog nor snapshot",
        "version 2 of 0_1 has neither changelog nor snapshot",
        "The file is empty: it has 0 bytes",
    ]
    if provider == spark.HDFS:  # a snapshot above makes up for it
        for partition in (0, 1):
            checkpoint.write(checkpoint.snapshot_path(3, partition), checkpoint.snapshot(3, partition))
        assert run(str(checkpoint.path)).exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("state", "code"), [("ok", ExitCode.OK), ("attention", ExitCode.OK), ("hurt", ExitCode.REFUSED)]
)
def test_a_server_is_asked_whether_it_is_ready_what_it_serves_and_how_it_is(state: str, code: ExitCode) -> None:
    with canned_server([LIVE, READY, STORES, health(state), CHECKPOINT, RELEASE]) as served:
        result = run(served.url)
    assert result.exit_code == code, result.output
    assert "aircraft" in result.stdout
    assert ("Bring it back" in result.stdout) is (state != "ok")


def test_a_store_whose_keys_any_partition_may_have_is_a_hint() -> None:
    stores = {"stores": [{"store": "a", "placement": "scattered"}, {"store": "b", "placement": "by-hash"}]}
    listed = Canned(json.dumps({**stores, "not_served": []}).encode())
    with canned_server([LIVE, READY, listed, health("ok"), CHECKPOINT, RELEASE]) as served:
        result = run(served.url)
    assert (result.exit_code, "any partition may have a key of a:" in result.stdout) == (ExitCode.OK, True)


def test_of_a_router_it_says_that_the_checkpoint_was_not_checked() -> None:
    with canned_server([LIVE, READY, STORES, health("ok"), LACKING, RELEASE]) as served:
        assert "not checked: a router does not read it" in run(served.url).stdout


def test_applications_of_a_fleet_that_have_the_same_trouble_are_one_finding() -> None:
    states = [("orders", "serving", None), ("lost-9", "failed", "Not JSON")]
    states += [(f"new-{n}", "waiting", f"there is no checkpoint at /data/new-{n}") for n in range(40)]
    rows = [{"application": name, "state": state, "reason": reason} for name, state, reason in states]
    stores = Canned(json.dumps({"stores": [{"store": "op0"}] * 40, "not_served": []}).encode())
    listed = Canned(json.dumps({"applications": rows}).encode())
    gone = {"state": "wrong", "what": "Spark cannot restart from these files", "fix": "Copy them back"}
    checkpoint = Canned(json.dumps({"findings": [gone]}).encode())
    with canned_server([LIVE, READY, stores, LACKING, listed, checkpoint, RELEASE]) as served:
        report = json.loads(run(served.url, "--json").stdout)
    assert (report["stores"], report["applications"]) == ("op0", "40 waiting, 1 serving, 1 failed")
    failed, waiting, lost = (each["what"] for each in report["findings"])
    assert lost == "application orders: Spark cannot restart from these files"
    assert failed == "application lost-9 is failed: Not JSON"
    assert waiting.startswith("40 applications ('new-0', 'new-1', 'new-2', 'new-3', 'new-4' and 35 more) are waiting: ")


def test_its_json_is_a_bug_report_without_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "counts").create().add(1)
    (tmp_path / "node.toml").write_text('workers = 3\nredis = "redis://flights:hush@bus:6379"\n')
    monkeypatch.setenv("UNDERSTUDY_CONFIG", str(tmp_path / "node.toml"))
    monkeypatch.setenv("UNDERSTUDY_PORT", "7109")
    monkeypatch.setenv("UNDERSTUDY_PROT", "7110")
    shown = run(str(checkpoint.path), "--json").stdout
    here = json.loads(shown)["here"]
    assert here["understudy"] == version("understudy-spark")
    assert here["packages"]["click"] == version("click")
    assert here["settings"]["node"]["workers"] == {"value": 3, "from": f"file {tmp_path / 'node.toml'}"}
    assert here["settings"]["node"]["port"] == {"value": "7109", "from": "variable UNDERSTUDY_PORT"}
    assert "UNDERSTUDY_PROT" in here["unknown"][0]
    assert "hush" not in shown
    assert "hush" not in run(str(checkpoint.path)).stdout


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERSTUDY_CONFIG", raising=False)


def run_config(*arguments: str, **environment: str | None) -> Result:
    return CliRunner(env={"UNDERSTUDY_CONFIG": None, **environment}).invoke(cli, ["config", *arguments])


def shown(result: Result) -> dict[str, tuple[object, str, str]]:
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["settings"]
    return {row["name"]: (row["value"], row["source"], row["where"]) for row in rows}


def test_a_flag_wins_over_a_variable_a_variable_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nhost = "::1"\nworkers = 4\nprot = 5\n')
    variables = {"UNDERSTUDY_PORT": "2", "understudy_host": "127.0.0.2", "UNDERSTUDY_WORKRES": "9"}
    result = run_config("serve", "/data/flights", "--port", "3", "--json", "--config", str(file), **variables)
    found = shown(result)
    assert found["checkpoint"] == ("/data/flights", "flag", "CHECKPOINT")
    assert found["port"] == (3, "flag", "--port")
    assert found["host"] == ("127.0.0.2", "variable", "understudy_host")
    assert found["workers"] == (4, "file", str(file))
    assert found["overlay_max_bytes"] == (64 * 1024 * 1024, "default", "")
    assert "the file has prot, which is not a setting. Did you mean 'port'?" in result.stderr
    assert "UNDERSTUDY_WORKRES is not a setting" in result.stderr


def test_passwords_are_masked_wherever_they_come_from() -> None:
    url = "redis://me:hush@bus:6379/0"
    for result in (
        run_config("node", "--redis", url),
        run_config("node", "--json", UNDERSTUDY_REDIS=url),
        run_config("node", "s3://key:hush@bucket/x"),
    ):
        assert result.exit_code == 0
        assert "hush" not in result.output
    assert "bus:6379" in run_config("router", "--changed", "--redis", url).stdout
