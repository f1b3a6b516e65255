"""The help is worth reading and quick; a missing extra is named; what welcomes a user can be copied and run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

import orjson
import pytest

from understudy.services.running import example_target
from understudy_shared.http.target import parse_query, split_path


def python(code: str) -> str:
    """What a fresh interpreter prints on running `code`, errors included."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return f"{done.returncode} {done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("missing", "arguments", "fix"),
    [
        ("click", ["--help"], ""),
        ("fastapi", ["serve", "/nowhere"], "[node]"),
        ("redis", ["node", "/nowhere", "--redis", "redis://127.0.0.1"], "[node]"),
        ("redis", ["router"], "[router]"),
        ("pyspark", ["demo"], "[all]"),
    ],
    ids=["client", "serve", "node", "router", "demo"],
)
def test_a_missing_extra_is_named_without_a_traceback(missing: str, arguments: Sequence[str], fix: str) -> None:
    output = python(
        f"import sys\nsys.modules[{missing!r}] = None\nsys.argv = ['understudy', *{arguments!r}]\n"
        "from understudy.cli import main\nmain()"
    )
    assert re.search(rf"error: (the command line needs |the demo needs )?{missing}", output), output
    assert re.search(rf"pip install 'understudy-spark{re.escape(fix)}[' ]", output), output
    assert "Traceback" not in output


STRING = {"name": "tailnum", "type": "string", "example": "text"}
WINDOW = {
    "name": "window",
    "type": "struct<start:timestamp,end:timestamp>",
    "example": {"start": "2024-01-31T12:34:56.000000Z", "end": "2024-01-31T13:34:56.000000Z"},
}
ARRAY = {"name": "items", "type": "array<string>", "example": ["text"]}


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
