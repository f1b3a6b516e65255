"""What a server says of a request is said by the command line in flags."""

from __future__ import annotations

import pytest

from understudy.calls.http_client import in_flags, place_in_flags


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Retry, or accept a larger max_lag or max_staleness_ms",
            "Retry, or accept a larger --max-lag or --max-staleness-ms",
        ),
        ("Retry, or accept it with unknown_lag=serve", "Retry, or accept it with --unknown-lag serve"),
        ("wait_ms=90000 is above 60000", "--wait-ms 90000 is above 60000"),
        ("Send longs=string, or longs=number (the default)", "Give --longs string, or --longs number (the default)"),
        ("Ask again with include_expired=true", "Ask again with --include-expired"),
        ("Retry; GET /admin/v1/lag shows how the nodes are", "Retry; understudy lag shows how the nodes are"),
        (
            "Send for example from=2026-11-25T12:00:00Z (the plus of an offset as %2B), or a time ago",
            "Give for example --from 2026-11-25T12:00:00Z, or a time ago",
        ),
        (
            "Send lookup?key=<JSON array or object>, percent-encoded",
            "Write understudy lookup STORE '<JSON array or object>'",
        ),
        (
            "keys/UA/EWR is not a key of this store: it has 2 path segments, the key takes 3",
            "UA EWR is not a key of this store: it has 2 parts, the key takes 3",
        ),
        (
            "Send a segment for each column, two for a window, as keys/text/text",
            "Give an argument for each column, two for a window, as understudy get STORE text text",
        ),
        (
            "Did you mean 'customers'? Stores here: customers, my_max_lag.",
            "Did you mean 'customers'? Stores here: customers, my_max_lag.",
        ),
    ],
)
def test_parameters_are_said_as_flags_and_everything_else_as_it_is(said: str, shown: str) -> None:
    assert in_flags(said) == shown
    assert in_flags(shown) == shown


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("path", "STORE KEY"),
        ("max_lag", "--max-lag"),
        ("limit", "--limit"),
        ("column n (bigint)", "column n (bigint)"),
        ("", ""),
    ],
)
def test_the_place_of_a_mistake_is_an_argument_or_a_flag(where: str, shown: str) -> None:
    assert place_in_flags(where) == shown
