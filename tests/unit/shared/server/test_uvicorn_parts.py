"""What `HttpProtocol` uses of uvicorn and uvicorn does not document, and the versions for which that was looked at."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib.metadata import version

import pytest
import uvicorn
from tests.support.repository import ROOT
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

LOOKED_AT = ("0.46", "0.54")
"""The oldest version that `pyproject.toml` allows, and the newest one in which the list below was looked at."""

LOOK_AT = """\
uvicorn {found} is not among the versions {first} to {last} that `server/protocol.py` was compared with. Compare
uvicorn/protocols/http/{{httptools_impl,flow_control}}.py with the lines of `server/{{protocol,held_flow}}.py` that say
"uvicorn:"; run tests/integration/shared/server and tests/integration/router/http; then widen LOOKED_AT here."""

PROTOCOL = """
app_state config connections cycle client expect_100_continue flow headers loop parser scheme scope server server_state
tasks transport url
"""
CYCLE = "disconnected keep_alive message_event response_complete response_started scope transport"
FLOW = "_transport read_paused write_paused"


def minor(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def assigned(of: type, *methods: str) -> set[str]:
    """The attributes of itself that a class assigns."""
    source = "\n".join(inspect.getsource(getattr(of, name)) for name in methods)
    return set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", source))


def test_uvicorn_is_a_version_that_the_protocol_was_compared_with() -> None:
    first, last = LOOKED_AT
    found = version("uvicorn")
    assert minor(first) <= minor(found) <= minor(last), LOOK_AT.format(found=found, first=first, last=last)


def test_the_least_version_is_the_one_that_the_project_allows() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = {each for extra in extras.values() for each in extra if each.startswith("uvicorn")}
    assert bounds == {f"uvicorn>={LOOKED_AT[0]}"}


@pytest.mark.parametrize(
    ("of", "methods", "used"),
    [
        (HttpToolsProtocol, ("__init__", "on_message_begin"), PROTOCOL),
        (RequestResponseCycle, ("__init__",), CYCLE),
        (FlowControl, ("__init__",), FLOW),
    ],
)
def test_the_attributes_that_the_protocol_uses_are_there(of: type, methods: tuple[str, ...], used: str) -> None:
    assert set(used.split()) - assigned(of, *methods) == set(), (
        f"{of.__name__} of uvicorn {uvicorn.__version__} lacks these"
    )


def test_uvicorn_calls_what_the_protocol_replaces() -> None:
    ways = {
        "on_headers_complete": "_start_asgi_task",  # where a request is refused, or its asker
        "__init__": "HttpRequestParser(self)",  # which calls `on_message_begin` and the others
    }
    for method, call in ways.items():
        assert call in inspect.getsource(getattr(HttpToolsProtocol, method))
    assert "on_response=self.on_response_complete" in inspect.getsource(HttpToolsProtocol.on_headers_complete)
    assert "self.on_response()" in inspect.getsource(RequestResponseCycle.send)
    assert "self.flow.resume_reading()" in inspect.getsource(RequestResponseCycle.receive)


def test_no_timer_runs_for_an_idle_connection() -> None:
    """uvicorn's own `on_response_complete` starts it, and `_unset_keepalive_if_required` ends it; ours has none."""
    source = inspect.getsource(HttpToolsProtocol)
    starts = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and "call_later" in ast.unparse(node)
    ]
    assert starts == ["on_response_complete"]


def test_there_is_a_status_line_for_each_status() -> None:
    assert set(range(100, 600)) == set(STATUS_LINE)
