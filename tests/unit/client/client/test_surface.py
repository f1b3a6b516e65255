"""The two shells of the Python client have one surface, and the package brings their names."""

from __future__ import annotations

import inspect

import pytest

import understudy
from understudy.client import aio, sync
from understudy.client.aio import AsyncChanges, AsyncWatch
from understudy.client.driver import Changes, Watch
from understudy.client.errors import UsageError

PAIRS = [
    (sync.Client, aio.AsyncClient),
    (sync.Store, aio.AsyncStore),
    (sync.View, aio.AsyncView),
    (sync.Snapshot, aio.AsyncSnapshot),
    (sync.Pages, aio.AsyncPages),
    (Watch, AsyncWatch),
    (Changes, AsyncChanges),
]
LONGER = {"close": "aclose"}


def surface(shell: type) -> dict[str, list[str]]:
    """The public members of a class, with the names and kinds of their parameters."""
    return {
        name: [str(each).partition(":")[0] for each in inspect.signature(member).parameters.values()]
        if callable(member)
        else []
        for name, member in inspect.getmembers(shell)
        if not name.startswith("_") or name == "__init__"
    }


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_shells_have_the_same_methods_with_the_same_parameters(blocking: type, awaited: type) -> None:
    """Q54."""
    expected = {LONGER.get(name, name): parameters for name, parameters in surface(blocking).items()}
    assert surface(awaited) == expected


def test_each_name_of_the_package_is_there_and_no_other() -> None:
    assert [name for name in understudy.__all__ if not hasattr(understudy, name)] == []
    with pytest.raises(AttributeError, match="nothing"):
        understudy.nothing  # noqa: B018


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://a",
        "http://",
        "http://a:x",
        "http://a/path?query",
        "http://a/#part",
        "http://user:secret@a",
        "http://a b",
        "http://[::1",
        "http://a:0",
    ],
)
def test_what_is_no_url_of_a_server_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        understudy.Client([url])
    assert "secret" not in str(raised.value)
