"""The help is worth reading and quick; a missing extra is named; what welcomes a user can be copied and run."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

import orjson
import pytest
from click.testing import CliRunner
from tests.support.services.command_line import ask

from understudy.commands.group import cli
from understudy.services.welcome import example_target, node_lines, router_lines, url_of, welcome_lines
from understudy_shared.base.extras import PACKAGE
from understudy_shared.base.words import HostInfo
from understudy_shared.http.target import parse_query, split_path

COMMANDS = [
    "demo",
    "serve",
    "node",
    "router",
    "get",
    "lookup",
    "scan",
    "count",
    "windows",
    "history",
    "watch",
    "changes",
    "sql",
    "explain",
    "stores",
    "types",
    "lag",
    "health",
    "drain",
    "safe-to-stop",
    "doctor",
    "config",
    "keys",
    "bench",
    "completion",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_and_the_exit_codes_in_its_help(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert f"understudy {command} " in result.output.split("Examples:")[1]
    assert "4  the server cannot be reached" in result.output


def test_the_help_says_what_it_is_with_examples_and_every_command() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert all(output.count(f"  understudy {command}") == 1 for command in ("demo", "serve ", "get ", "lookup "))
    assert "without a JVM" in output
    for command in COMMANDS:
        assert f"\n  {command} " in output


def test_the_version_is_the_packages() -> None:
    assert importlib.metadata.version(PACKAGE) in CliRunner().invoke(cli, ["--version"]).output


def python(code: str) -> str:
    """What a fresh interpreter prints on running `code`, errors included."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_the_help_loads_nothing_heavy() -> None:
    output = python(
        "import sys\nfrom understudy.commands.group import cli\ncli(['--help'], standalone_mode=False)\n"
        "print('heavy:', {'rich', 'httpx', 'pydantic', 'orjson', 'asyncio', 'understudy_node'} & set(sys.modules))"
    )
    assert output.startswith("0 ")
    assert "heavy: set()" in output


@pytest.mark.parametrize(
    ("missing", "arguments", "fix"),
    [
        ("click", ["--help"], "client"),
        ("fastapi", ["serve", "/nowhere"], "node"),
        ("redis", ["node", "/nowhere"], "node"),
        ("redis", ["router"], "router"),
        ("pyspark", ["demo"], "all"),
    ],
    ids=["client", "serve", "node", "router", "demo"],
)
def test_a_missing_extra_is_named_without_a_traceback(missing: str, arguments: Sequence[str], fix: str) -> None:
    output = python(
        f"import sys\nsys.modules[{missing!r}] = None\nsys.argv = ['understudy', *{arguments!r}]\n"
        "from understudy.cli import main\nmain()"
    )
    assert re.search(rf"error: (the command line needs |the demo needs )?{missing}", output), output
    assert f"pip install 'understudy-spark[{fix}]" in output
    assert "Traceback" not in output


STRING = {"name": "tailnum", "type": "string", "example": "text"}
WINDOW = {
    "name": "window",
    "type": "struct<start:timestamp,end:timestamp>",
    "example": {"start": "2024-01-31T12:34:56.000000Z", "end": "2024-01-31T13:34:56.000000Z"},
}
ARRAY = {"name": "items", "type": "array<string>", "example": ["text"]}


def test_a_lookup_loads_nothing_heavy() -> None:
    output = python(
        "import sys\nfrom understudy.commands.group import cli\n"
        "try:\n    cli(['get', 's', 'k', '--url', 'http://127.0.0.1:1'])\nexcept SystemExit as end:\n"
        "    print('code', end.code, 'heavy:', {'rich', 'httpx', 'pydantic', 'asyncio', 'difflib'} & set(sys.modules))"
    )
    assert "code 4 heavy: set()" in output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_a_script_that_completes_understudy(shell: str) -> None:
    script = CliRunner().invoke(cli, ["completion", shell])
    assert script.exit_code == 0
    assert f"_UNDERSTUDY_COMPLETE={shell}_complete" in script.output


def test_the_shells_question_is_answered_with_commands_and_options() -> None:
    def completed(words: str, at: int) -> str:
        variables = {"_UNDERSTUDY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return ask(variables=variables).stdout

    assert completed("understudy st", 1) == "plain,stores\n"
    assert "plain,--max-lag\n" in completed("understudy get --max", 2)


def store(*columns: Mapping[str, object]) -> dict[str, object]:
    """A store as `/v1/stores` describes it."""
    return {"store": "by/tail", "operator": "stateStoreSave", "partitions": 3, "key": list(columns)}


def test_an_example_takes_the_friendly_form_where_every_column_has_one() -> None:
    assert split_path(example_target(store(STRING, WINDOW)).encode()) == [
        *("v1", "stores", "by/tail", "keys", "text", "2024-01-31T12:34:56.000000Z", "2024-01-31T13:34:56.000000Z")
    ]


@pytest.mark.parametrize("columns", [(), (STRING, ARRAY)], ids=["global", "array"])
def test_an_example_takes_the_exact_form_where_it_must(columns: tuple[Mapping[str, object], ...]) -> None:
    path, _, query = example_target(store(*columns)).partition("?")
    assert split_path(path.encode()) == ["v1", "stores", "by/tail", "lookup"]
    assert orjson.loads(parse_query(query.encode())["key"]) == [column["example"] for column in columns]


def test_an_example_is_a_key_that_exists_where_the_node_found_one() -> None:
    described = store(STRING, WINDOW) | {"existing_key": {"tailnum": "N1", "window": {"start": "a", "end": "b"}}}
    assert split_path(example_target(described).encode())[4:] == ["N1", "a", "b"]
    nulls = store(STRING) | {"existing_key": {"tailnum": None}}
    assert orjson.loads(parse_query(example_target(nulls).partition("?")[2].encode())["key"]) == [None]


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("::1", "http://[::1]:80")],
)
def test_the_url_is_one_that_this_machine_can_reach(host: str, url: str) -> None:
    assert url_of(HostInfo(host, 80)) == url


def test_a_service_without_stores_says_so_and_why() -> None:
    refused = [{"operator_id": 0, "operator": "dedupe", "reason": "not supported"}]
    lines = welcome_lines("http://a:1", {"stores": [], "not_served": refused})
    assert "  There is no store to ask." in lines
    assert "  not served: op0 (dedupe): not supported" in lines


def test_a_node_of_a_cluster_sends_readers_to_a_router_and_a_router_shows_them_how() -> None:
    document = {"stores": [store(STRING)], "not_served": []}
    assert not any("curl" in line for line in node_lines("http://a:1", document))
    assert any("understudy router --help" in line for line in node_lines("http://a:1", document))
    lines = router_lines("http://a:1", document)
    assert lines[0] == "Routing at http://a:1"
    assert f"    curl 'http://a:1{example_target(store(STRING))}'" in lines
