"""Listings of many names, which stores give in pages: all of them come, or an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

from understudy_node.checkpoint.azure import Azure
from understudy_node.checkpoint.gcs import GCS
from understudy_node.checkpoint.object_store import ObjectStoreFiles, StoreAccess, StoreFolder
from understudy_node.checkpoint.s3 import S3
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.errors import CheckpointError

PAGE = 1_000
NAMES = [f"50%25 & <{number}> \u540d.changelog" for number in range(100_000)]
TIMES = "<Last-Modified>Wed, 21 Oct 2026 07:28:00 GMT</Last-Modified>"


class Pages(ThreadingHTTPServer):
    """A store with `NAMES` in one folder. The page of number `broken` is refused, once for each number of `times`."""

    daemon_threads = True
    broken, times = -1, 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: Pages
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        page = int(query.get("continuation-token", query.get("marker", "0")))
        self.server.asked += 1
        status, body = 200, _azure(page) if query.get("comp") == "list" else _s3(page)
        if page == self.server.broken and self.server.times:
            self.server.times -= 1
            status, body = 503, "<Error><Code>SlowDown</Code></Error>"
        self.send_response_only(status)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


def _names(page: int) -> tuple[list[str], int]:
    """The names of a page, escaped, and the number of the next; 0 after the last."""
    found = [escape(name) for name in NAMES[page * PAGE : (page + 1) * PAGE]]
    return found, page + 1 if (page + 1) * PAGE < len(NAMES) else 0


def _s3(page: int) -> str:
    names, following = _names(page)
    objects = "".join(
        f"<Contents><Key>x/state/{name}</Key><LastModified>2026-10-21T07:28:00.000Z</LastModified><Size>1</Size>"
        f"<ETag>x</ETag></Contents>"
        for name in names
    )
    goes_on = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    cut = "true" if following else "false"
    return f"<ListBucketResult><IsTruncated>{cut}</IsTruncated>{goes_on}{objects}</ListBucketResult>"


def _azure(page: int) -> str:
    names, following = _names(page)
    blobs = "".join(
        f"<Blob><Name>x/state/{name}</Name><Properties>{TIMES}<Content-Length>1</Content-Length>"
        f"<Content-Type>x</Content-Type><Etag>x</Etag></Properties></Blob>"
        for name in names
    )
    return (
        f"<EnumerationResults><Prefix>x/state/</Prefix><MaxResults>{PAGE}</MaxResults><Delimiter>/</Delimiter>"
        f"<Blobs>{blobs}</Blobs><NextMarker>{following or ''}</NextMarker></EnumerationResults>"
    )


PLACES: dict[str, Callable[[str], StoreFolder]] = {
    "s3": lambda url: S3("s3://bucket/x", _access(endpoint=url, region="r", access_key_id="a", secret_access_key="b")),
    "azure": lambda url: Azure(
        "abfss://box@team.dfs.core.windows.net/x", _access(endpoint=url, account_name="team", skip_signature="true")
    ),
    "gcs": lambda url: GCS("gs://bucket/x", _access(base_url=url, skip_signature="true")),
}


def _access(**config: Any) -> Callable[[], StoreAccess]:
    return lambda: StoreAccess(config, allow_http=True, looked_in="the test")


@pytest.fixture
def pages() -> Iterator[Pages]:
    with Pages() as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield found
        found.shutdown()


@pytest.fixture(params=["s3", "azure", pytest.param("gcs", marks=pytest.mark.full)])  # GCS answers as S3 does
def files(request: pytest.FixtureRequest, pages: Pages) -> ObjectStoreFiles:
    limits = StoreLimits(max_tries=2, first_wait_ms=1, max_wait_ms=2)
    return ObjectStoreFiles(PLACES[request.param](pages.url), limits=limits)


def test_a_listing_of_100_000_names_has_each_of_them_once(files: ObjectStoreFiles, pages: Pages) -> None:
    assert files.list("state") == NAMES
    assert pages.asked == len(NAMES) // PAGE


def test_a_page_that_fails_makes_no_short_listing(
    files: ObjectStoreFiles, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.NAMES", NAMES[:5_000])
    pages.broken, pages.times = 3, 2
    with pytest.raises(CheckpointError, match="asks for fewer requests"):
        files.list("state")
    pages.times = 1
    assert files.list("state") == NAMES
