"""Reading commands, run against prepared replies."""

from __future__ import annotations

import json
from collections.abc import Sequence

from click.testing import CliRunner, Result
from tests.support.services.canned_server import PROBLEM, Canned, canned_server

from understudy.commands.group import cli

FOUND = (
    b'{"store":"aircraft","key":{"tailnum":"N1"},"found":true,"value":{"count":15,"avg":1.0},"partition":3,'
    b'"version":418,"committed_at":"2026-11-20T11:00:03.120000Z","watermark":null,"lag":{"current_offset_position":418,'
    b'"end_offset_position":420,"offset_lag":2,"time_lag_ms":1200},"served_by":{"host":"node-1","port":7101,'
    b'"role":"active","state":"RUNNING"},"position":"us1.abc"}\n'
)
ABSENT = FOUND.replace(b'"found":true,"value":{"count":15,"avg":1.0}', b'"found":false')
UNKNOWN_LAG = (
    FOUND.replace(b'"offset_lag":2', b'"offset_lag":null')
    .replace(b'"time_lag_ms":1200', b'"time_lag_ms":null')
    .replace(b'"end_offset_position":420', b'"end_offset_position":null')
)
REFUSED = (
    b'{"type":"no-acceptable-replica","title":"No replica","status":503,"detail":"no replica may answer: lag-exceeded",'
    b'"where":"bounds","fix":"Retry","candidates":[{"host":"node-1","port":7101,"role":"active","state":"RUNNING",'
    b'"reason":"lag-exceeded","version":418,"offset_lag":2,"time_lag_ms":null}]}\n'
)


def problem(slug: str, status: int) -> Canned:
    """A problem without candidates."""
    body = {"type": slug, "title": "t", "status": status, "detail": f"a {slug}", "where": "here", "fix": "do this"}
    return Canned(json.dumps(body).encode(), status, PROBLEM)


def batch(*items: bytes) -> Canned:
    """A batch's reply."""
    results = [b'{"status":200,' + item.rstrip()[1:] if b'"found"' in item else item.rstrip() for item in items]
    return Canned(b'{"results":[' + b",".join(results) + b"]}\n")


def run(
    arguments: Sequence[str], replies: Sequence[Canned], *, stdin: bytes = b"", url: str = ""
) -> tuple[Result, list[tuple[str, bytes]]]:
    """The command's result, and what the server was asked: this one, unless another is named."""
    with canned_server(replies) as served:
        result = CliRunner().invoke(cli, [*arguments, "--url", url or served.url], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result, served.requests
